// Names of threads, which a debugger and `top -H` show.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <pthread.h>

#include <string>

namespace weft::base {

inline void name_this_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace weft::base
