// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <string>

#include <fmt/format.h>

#include "rendezvous/member_record.h"
#include "rendezvous/store.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

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

Group meet(const Invitation& invitation, const Member& self) {
  const OpenStore open = open_store(invitation);
  const int meeting = open.earlier_uses;
  c10d::Store& store = *open.store;
  Group group;
  group.self = invitation.rank;
  try {
    store.setTimeout(invitation.timeout);
    store.set(key_of(meeting, invitation.rank),
              encode_record({self.info.name, self.address, self.incarnation, random_id(),
                             invitation.world_size}));
    for (int rank = 0; rank < invitation.world_size; ++rank) {
      const MemberRecord record = decode_record(store.get(key_of(meeting, rank)), rank);
      if (record.world_size != invitation.world_size) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("rank {} says the group has {} members, rank {} says {}", rank,
                                record.world_size, invitation.rank, invitation.world_size));
      }
      if (rank == 0) group.token = record.token;
      group.members.push_back({{record.name, rank}, record.address, record.incarnation});
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
      // Then the next attempt's record replaces it.
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
