// Mutexes whose members say which lock guards them, so that clang can check it
// (-Wthread-safety); for other compilers the annotations are nothing.
//
// A member that a mutex guards is annotated WEFT_GUARDED_BY(mutex_), a function that is called with
// the mutex held WEFT_REQUIRES(mutex_).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WEFT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define WEFT_THREAD_ANNOTATION(x)
#endif

#define WEFT_GUARDED_BY(mutex) WEFT_THREAD_ANNOTATION(guarded_by(mutex))
#define WEFT_REQUIRES(...) WEFT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define WEFT_EXCLUDES(...) WEFT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define WEFT_ACQUIRE(...) WEFT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define WEFT_RELEASE(...) WEFT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define WEFT_TRY_ACQUIRE(...) WEFT_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
/// For what clang cannot follow; the reason stands beside each use.
#define WEFT_UNCHECKED_LOCKING WEFT_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace weft::detail {

class WEFT_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;

  void lock() WEFT_ACQUIRE() { mutex_.lock(); }
  void unlock() WEFT_RELEASE() { mutex_.unlock(); }
  bool try_lock() WEFT_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a mutex from its construction to its end; in between it can be let go and taken again.
class WEFT_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEFT_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  // Not by the destructor of `lock_`: compilers do not inline what may throw.
  ~MutexLock() WEFT_RELEASE() {
    if (lock_.owns_lock()) lock_.release()->unlock();
  }
  MutexLock(const MutexLock&) = delete;

  void lock() WEFT_ACQUIRE() { lock_.lock(); }
  void unlock() WEFT_RELEASE() { lock_.unlock(); }

  /// For std::condition_variable, which lets go of the mutex only while it waits.
  std::unique_lock<std::mutex>& for_waiting() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace weft::detail
