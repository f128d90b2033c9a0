// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/invitation.h"

#include <cerrno>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "rendezvous/limits.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

int integer_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text || !*text) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("neither the options nor the environment variable {} say it", variable));
  }
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || errno != 0 || value < 0 || value > INT_MAX) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the environment variable {} is no number from 0 to {}: \"{}\"",
                            variable, INT_MAX, text));
  }
  return static_cast<int>(value);
}

}  // namespace

Invitation read_invitation(const std::string& method, int rank, int world_size,
                           std::chrono::milliseconds timeout) {
  Invitation invitation;
  const char* from_launcher = std::getenv("WEFT_RENDEZVOUS");
  invitation.method = !method.empty()                   ? method
                      : from_launcher && *from_launcher ? from_launcher
                                                        : "env://";
  invitation.rank = rank >= 0 ? rank : integer_from_environment("RANK");
  invitation.world_size = world_size > 0 ? world_size : integer_from_environment("WORLD_SIZE");
  invitation.timeout = timeout;
  if (invitation.world_size > kMostMembers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a group has at most {} members; the world size is {}", kMostMembers,
                            invitation.world_size));
  }
  if (invitation.world_size < 1 || invitation.rank >= invitation.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} in a group of {}", invitation.rank, invitation.world_size));
  }
  return invitation;
}

}  // namespace weft::rendezvous
