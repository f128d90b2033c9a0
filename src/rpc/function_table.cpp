// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/function_table.h"

#include <deque>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/demangle.h"
#include "wire/limits.h"

namespace weft {

namespace {

// Filled before main (and when a library is loaded), so it is a function's static: whoever comes
// first makes it. Entries are never removed; their addresses are stable.
struct Table {
  std::mutex mutex;
  std::deque<detail::FunctionEntry> entries;
  std::map<std::pair<std::string, uint64_t>, uint32_t> by_name;
};
Table& table() {
  static auto* leaked = new Table;
  return *leaked;
}

void bind_name(Table& into, detail::FunctionEntry& entry) {
  auto [at, fresh] = into.by_name.try_emplace({entry.name, entry.signature}, entry.index);
  if (fresh || at->second == entry.index) return;
  entry.ambiguous = true;
  into.entries[at->second].ambiguous = true;
}

}  // namespace

namespace detail {

FunctionEntry& register_function(const char* tag, std::string signature, InvokeFunction invoke) {
  Table& into = table();
  std::lock_guard lock(into.mutex);
  FunctionEntry& entry = into.entries.emplace_back();
  entry.index = static_cast<uint32_t>(into.entries.size() - 1);
  entry.name = rpc::function_name_from_tag(tag);
  entry.signature = rpc::hash_signature(signature);
  entry.signature_text = std::move(signature);
  entry.invoke = invoke;
  bind_name(into, entry);
  return entry;
}

void rename_function(FunctionEntry& entry, std::string name) {
  if (name.empty() || name.size() > wire::kMaxNameBytes) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a function name has 1 to {} bytes: \"{}\"", wire::kMaxNameBytes, name));
  }
  Table& into = table();
  std::lock_guard lock(into.mutex);
  if (auto old = into.by_name.find({entry.name, entry.signature});
      old != into.by_name.end() && old->second == entry.index) {
    into.by_name.erase(old);
  }
  entry.name = std::move(name);
  entry.ambiguous = false;
  bind_name(into, entry);
}

}  // namespace detail

namespace rpc {

namespace {

// "space::name<(Mode)0>(int, char) const" -> "space::name<(Mode)0>". Parameters are the signature's
// business.
std::string without_parameters(std::string name) {
  if (name.ends_with(" const")) name.resize(name.size() - 6);
  if (!name.ends_with(')')) return name;
  int depth = 0;
  for (size_t at = name.size(); at-- > 0;) {
    if (name[at] == ')') ++depth;
    if (name[at] == '(' && --depth == 0) {
      if (at > 0 && name.compare(at, std::string::npos, "(anonymous namespace)") != 0)
        name.resize(at);
      break;
    }
  }
  return name;
}

// Instances of templates come with their result type: "int name<1>" -> "name<1>".
std::string without_result(std::string name) {
  int depth = 0;
  size_t start = 0;
  for (size_t at = 0; at < name.size(); ++at) {
    if (name[at] == '(' || name[at] == '<') ++depth;
    if (name[at] == ')' || name[at] == '>') --depth;
    if (name[at] == ' ' && depth == 0) start = at + 1;
  }
  return name.substr(start);
}

}  // namespace

std::string function_name_from_tag(const char* tag) {
  // "weft::detail::FunctionTag<&(space::name(int, char))>", "...<&space::name>" or
  // "...<main::{lambda(int)#1}{}>"
  std::string name = base::demangle(tag);
  const size_t open = name.find('<');
  if (open != std::string::npos && name.back() == '>') {
    name = name.substr(open + 1, name.size() - open - 2);
  }
  if (name.ends_with("{}")) name.resize(name.size() - 2);
  if (name.starts_with('&')) name.erase(0, 1);
  if (name.starts_with('(') && name.ends_with(')') && !name.starts_with("(anonymous")) {
    name = name.substr(1, name.size() - 2);
  }
  const bool lambda =
      name.find("{lambda") != std::string::npos || name.find("$_") != std::string::npos;
  if (!lambda) name = without_result(without_parameters(std::move(name)));
  if (name.size() > wire::kMaxNameBytes) {
    const std::string suffix = fmt::format("#{:016x}", hash_signature(name));
    name = name.substr(0, wire::kMaxNameBytes - suffix.size()) + suffix;
  }
  return name;
}

// FNV-1a: stable between builds and compilers, which std::hash is not.
uint64_t hash_signature(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return hash;
}

FunctionLookup find_function(std::string_view name, uint64_t signature) {
  Table& in = table();
  std::lock_guard lock(in.mutex);
  const std::string key(name);
  if (auto found = in.by_name.find({key, signature}); found != in.by_name.end()) {
    return {&in.entries[found->second], true};
  }
  auto any = in.by_name.lower_bound({key, 0});
  return {nullptr, any != in.by_name.end() && any->first.first == key};
}

const detail::FunctionEntry* function_at(uint32_t index) {
  Table& in = table();
  std::lock_guard lock(in.mutex);
  return index < in.entries.size() ? &in.entries[index] : nullptr;
}

uint32_t function_count() {
  Table& in = table();
  std::lock_guard lock(in.mutex);
  return static_cast<uint32_t>(in.entries.size());
}

}  // namespace rpc
}  // namespace weft
