// The peer that is Python: where it is and whether it can be measured.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdlib>
#include <string>

namespace bench {

inline constexpr char kPython[] = "/usr/bin/python3";

inline bool torch_rpc_is_installed() {
  const std::string check = std::string(kPython) +
                            " -c 'import torch.distributed.rpc as r; assert r.is_available()'"
                            " 2>/dev/null";
  return std::system(check.c_str()) == 0;
}

}  // namespace bench
