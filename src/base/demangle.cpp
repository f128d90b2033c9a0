// SPDX-License-Identifier: BSD-3-Clause
#include "base/demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace weft::base {

std::string demangle(const char* mangled) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : mangled;
}

}  // namespace weft::base
