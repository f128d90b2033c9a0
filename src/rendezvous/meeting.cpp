// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/limits.h"
#include "rendezvous/store.h"
#include "weft/codec.h"

namespace weft::rendezvous {

namespace {

// Everybody's first move, so that a missing member is named and not merely missed.
struct Card {
  std::string name;
  std::string address;
  uint64_t incarnation = 0;
  uint64_t token = 0;  // rank 0's is the group's
  int32_t world_size = 0;
};

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

std::vector<uint8_t> to_bytes(const Card& card) {
  Encoder out;
  Codec<Card>::encode(out, card);
  const auto* data = reinterpret_cast<const uint8_t*>(out.payload().data());
  return {data, data + out.payload().size()};
}

Card to_card(const std::vector<uint8_t>& bytes) {
  Decoder in(std::as_bytes(std::span(bytes)), {});
  Card card = Codec<Card>::decode(in);
  in.finish();
  return card;
}

std::string key_of(int meeting, int rank) { return fmt::format("weft/{}/{}", meeting, rank); }

std::string missing_ranks(c10d::Store& store, int meeting, int world_size) {
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store.check({key_of(meeting, rank)})) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return missing;
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

Group meet(const Invitation& invitation, const Member& self) {
  const OpenStore open = open_store(invitation);
  const int meeting = open.earlier_uses;
  c10d::Store& store = *open.store;
  Group group;
  group.self = invitation.rank;
  try {
    store.setTimeout(invitation.timeout);
    store.set(key_of(meeting, invitation.rank),
              to_bytes({self.info.name, self.address, self.incarnation, random_id(),
                        invitation.world_size}));
    for (int rank = 0; rank < invitation.world_size; ++rank) {
      const Card card = to_card(store.get(key_of(meeting, rank)));
      if (card.world_size != invitation.world_size) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("rank {} says the group has {} members, rank {} says {}", rank,
                                card.world_size, invitation.rank, invitation.world_size));
      }
      if (rank == 0) group.token = card.token;
      group.members.push_back({{card.name, rank}, card.address, card.incarnation});
    }
  } catch (const Error&) {
    forget_use(invitation);
    throw;
  } catch (const std::exception& error) {
    std::string missing;
    try {
      missing = missing_ranks(store, meeting, invitation.world_size);
    } catch (const std::exception&) {
      missing = "unknown, the store is gone";
    }
    try {
      store.deleteKey(key_of(meeting, invitation.rank));  // nobody is to find our address any more
    } catch (const std::exception&) {
      // Then the next attempt's card replaces it.
    }
    forget_use(invitation);
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("the group of {} at {} did not form within {} ms; missing ranks: {} ({})",
                    invitation.world_size, invitation.method, invitation.timeout.count(), missing,
                    error.what()));
  }
  check_names_unique(group);
  return group;
}

}  // namespace weft::rendezvous
