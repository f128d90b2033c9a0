// Readable names of C++ types and symbols.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <typeinfo>

namespace weft::base {

std::string demangle(const char* mangled);
inline std::string demangle(const std::type_info& type) { return demangle(type.name()); }

}  // namespace weft::base
