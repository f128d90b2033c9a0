// The functions of this program that the wire may run: the whole list, nothing else.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/detail/function_entry.h"

namespace weft::rpc {

/// The agent's own functions, which are not counted as work.
inline bool is_reserved(const detail::FunctionEntry& function) { return function.reserved; }

/// The line of code with which a program serves a function of this name.
std::string how_to_expose(std::string_view name);

uint64_t hash_signature(std::string_view text);

struct FunctionLookup {
  const detail::FunctionEntry* found = nullptr;
  bool name_exists = false;  // with another signature
};
FunctionLookup find_function(std::string_view name, uint64_t signature);
const detail::FunctionEntry* function_at(uint32_t index);
uint32_t function_count();

}  // namespace weft::rpc
