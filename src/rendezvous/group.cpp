// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/group.h"

#include <map>
#include <random>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::rendezvous {

namespace {
constexpr size_t kNameLimit = 128;
}

void check_name(const std::string& name) {
  if (name.empty()) throw Error(ErrorCode::kInvalidArgument, "a worker's name must be non-empty");
  if (name.size() >= kNameLimit) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a worker's name must be shorter than {} bytes: {} bytes: \"{}\"",
                            kNameLimit, name.size(), name));
  }
  for (const char c : name) {
    const bool fine = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == ':' || c == '-';
    if (!fine) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a worker's name must match [A-Za-z0-9_:-]+: \"{}\"", name));
    }
  }
}

void check_names_unique(const Group& group) {
  std::map<std::string, int> ranks;
  for (const Member& member : group.members) {
    auto [at, fresh] = ranks.emplace(member.info.name, member.info.id);
    if (!fresh) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("a worker's name is not unique in the group: ranks {} and {} are both "
                      "called \"{}\"",
                      at->second, member.info.id, member.info.name));
    }
  }
}

uint64_t random_id() {
  std::random_device device;
  uint64_t id = 0;
  while (id == 0) id = static_cast<uint64_t>(device()) << 32 | device();
  return id;
}

}  // namespace weft::rendezvous
