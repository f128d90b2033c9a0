// SPDX-License-Identifier: BSD-3-Clause
#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include <fmt/format.h>

namespace weft::base {

bool raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(2 * limit.rlim_cur, 64));
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

std::string describe_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format("this process may have {} descriptors; raise its limit (ulimit -Hn)",
                     limit.rlim_cur);
}

}  // namespace weft::base
