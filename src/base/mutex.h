// Annotated mutexes, under the name that the library's own code uses.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "weft/detail/mutex.h"

namespace weft::base {

using detail::Mutex;
using detail::MutexLock;

}  // namespace weft::base
