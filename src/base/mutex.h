// Annotated mutexes, under the name that the library's own code uses.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "weft/detail/mutex.h"

namespace weft::base {

using detail::Mutex;
using detail::MutexLock;

/// Lets go of a mutex that is held, and takes it again at its end, also if something is thrown.
template <typename M>
class WEFT_THREAD_ANNOTATION(scoped_lockable) Unlocked {
 public:
  explicit Unlocked(M& mutex) WEFT_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  // Clang: the scope ends, so what it has let go of is held again.
  ~Unlocked() WEFT_RELEASE() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;

 private:
  M& mutex_;
};

}  // namespace weft::base
