// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/functions/function_table.h"

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/demangle.h"
#include "base/mutex.h"
#include "wire/limits.h"

namespace weft {

namespace {

constexpr std::string_view kReservedPrefix = "sys.";

// Filled before main (and when a library is loaded), so it is a function's static: the first
// registration makes it. Entries are never removed; their addresses are stable.
struct Table {
  using Key = std::pair<std::string, uint64_t>;  // name, signature

  base::Mutex mutex;
  std::deque<detail::FunctionEntry> entries WEFT_GUARDED_BY(mutex);
  std::map<Key, std::vector<uint32_t>> by_name
      WEFT_GUARDED_BY(mutex);  // more than one: none of them can be called

  void bind(detail::FunctionEntry& entry) WEFT_REQUIRES(mutex) {
    auto& same = by_name[{entry.name, entry.signature}];
    same.push_back(entry.index);
    mark(same);
  }
  void unbind(const detail::FunctionEntry& entry) WEFT_REQUIRES(mutex) {
    auto found = by_name.find({entry.name, entry.signature});
    std::erase(found->second, entry.index);
    mark(found->second);
    if (found->second.empty()) by_name.erase(found);
  }
  void rename(detail::FunctionEntry& entry, std::string name) WEFT_REQUIRES(mutex) {
    unbind(entry);
    entry.name = std::move(name);
    bind(entry);
  }

 private:
  void mark(const std::vector<uint32_t>& same) WEFT_REQUIRES(mutex) {
    for (const uint32_t index : same) entries[index].ambiguous = same.size() > 1;
  }
};
Table& table() {
  static auto* leaked = new Table;
  return *leaked;
}

std::string cut_name(std::string name) {
  if (name.size() <= wire::kMaxNameBytes) return name;
  const std::string suffix = fmt::format("#{:016x}", rpc::hash_signature(name));
  return name.substr(0, wire::kMaxNameBytes - suffix.size()) + suffix;
}

}  // namespace

namespace detail {

FunctionEntry& register_function(std::string name, std::string signature, InvokeFunction invoke,
                                 Makes makes) {
  Table& into = table();
  const base::MutexLock lock(into.mutex);
  FunctionEntry& entry = into.entries.emplace_back();
  entry.index = static_cast<uint32_t>(into.entries.size() - 1);
  entry.name = cut_name(std::move(name));
  entry.signature = rpc::hash_signature(signature);
  entry.signature_text = std::move(signature);
  entry.invoke = invoke;
  entry.makes = makes;
  into.bind(entry);
  return entry;
}

void rename_function(FunctionEntry& entry, std::string name) {
  if (name.empty() || name.size() > wire::kMaxNameBytes) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a function name has 1 to {} bytes: \"{}\"", wire::kMaxNameBytes, name));
  }
  if (name.starts_with(kReservedPrefix)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("names that begin with \"{}\" belong to Weft's own functions; choose "
                            "another one for {} than \"{}\"",
                            kReservedPrefix, entry.name, name));
  }
  Table& into = table();
  const base::MutexLock lock(into.mutex);
  into.rename(entry, std::move(name));
}

void reserve_function(FunctionEntry& entry, std::string name) {
  Table& into = table();
  const base::MutexLock lock(into.mutex);
  entry.reserved = true;
  into.rename(entry, std::move(name));
}

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
  return name;
}

std::string type_name(const std::type_info& type) { return base::demangle(type); }

}  // namespace detail

namespace rpc {

// FNV-1a: stable between builds and compilers, which std::hash is not.
uint64_t hash_signature(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return hash;
}

FunctionLookup find_function(std::string_view name, uint64_t signature) {
  Table& in = table();
  const base::MutexLock lock(in.mutex);
  const std::string key(name);
  if (auto found = in.by_name.find({key, signature}); found != in.by_name.end()) {
    return {&in.entries[found->second.front()], true};
  }
  auto any = in.by_name.lower_bound({key, 0});
  return {nullptr, any != in.by_name.end() && any->first.first == key};
}

std::string how_to_expose(std::string_view name) {
  const auto inside = [&name](std::string_view before, std::string_view after) {
    return name.substr(before.size(), name.size() - before.size() - after.size());
  };
  if (name.starts_with("RRef<") && name.ends_with(">::to_here"))
    return fmt::format("weft::expose_value<{}>()", inside("RRef<", ">::to_here"));
  if (name.starts_with("remote<") && name.ends_with(">")) {
    return fmt::format(
        "weft::expose_remote<{0}>(), or weft::expose_remote<{0}, arguments...>() if "
        "{0} is a class",
        inside("remote<", ">"));
  }
  return fmt::format("weft::expose<{0}>(), or weft::expose<&{0}>() if it is a method", name);
}

const detail::FunctionEntry* function_at(uint32_t index) {
  Table& in = table();
  const base::MutexLock lock(in.mutex);
  return index < in.entries.size() ? &in.entries[index] : nullptr;
}

uint32_t function_count() {
  Table& in = table();
  const base::MutexLock lock(in.mutex);
  return static_cast<uint32_t>(in.entries.size());
}

}  // namespace rpc
}  // namespace weft
