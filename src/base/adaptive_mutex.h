// A mutex that is held for less time than it takes a thread to fall asleep and be woken. A thread
// that finds it taken tries again for a moment before it sleeps.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <pthread.h>

#include "base/mutex.h"

namespace weft::base {

class WEFT_THREAD_ANNOTATION(capability("mutex")) AdaptiveMutex {
 public:
  AdaptiveMutex() = default;
  AdaptiveMutex(const AdaptiveMutex&) = delete;
  AdaptiveMutex& operator=(const AdaptiveMutex&) = delete;
  ~AdaptiveMutex() { pthread_mutex_destroy(&mutex_); }

  void lock() noexcept WEFT_ACQUIRE() { pthread_mutex_lock(&mutex_); }
  bool try_lock() noexcept WEFT_TRY_ACQUIRE(true) { return pthread_mutex_trylock(&mutex_) == 0; }
  void unlock() noexcept WEFT_RELEASE() { pthread_mutex_unlock(&mutex_); }

 private:
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
  pthread_mutex_t mutex_ = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
#else
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
#endif
};

/// Holds the mutex until its end; in between it can be let go and taken again.
class WEFT_THREAD_ANNOTATION(scoped_lockable) AdaptiveLock {
 public:
  explicit AdaptiveLock(AdaptiveMutex& mutex) WEFT_ACQUIRE(mutex) : mutex_(mutex) { mutex.lock(); }
  ~AdaptiveLock() WEFT_RELEASE() {
    if (held_) mutex_.unlock();
  }
  AdaptiveLock(const AdaptiveLock&) = delete;

  void lock() WEFT_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }
  void unlock() WEFT_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }

 private:
  AdaptiveMutex& mutex_;
  bool held_ = true;
};

}  // namespace weft::base
