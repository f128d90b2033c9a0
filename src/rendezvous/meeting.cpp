// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <chrono>
#include <vector>

#include "base/clock.h"
#include "rendezvous/group_formation.h"
#include "rendezvous/host_identity.h"
#include "rendezvous/open_stores.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

OpenStore open_store_of(const Invitation& invitation, base::Time deadline) {
  try {
    return open_store(invitation, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    throw not_formed(invitation, deadline, error.message());
  }
}

}  // namespace

Group meet(const Invitation& invitation, const Member& self) {
  const base::Time deadline = base::later(std::chrono::steady_clock::now(), invitation.timeout);
  const OpenStore open = open_store_of(invitation, deadline);
  const MemberRecord mine{self.info.name, self.address,          self.incarnation,
                          random_id(),    invitation.world_size, host_identity()};
  Group group;
  group.self = invitation.rank;
  try {
    GroupFormation formation(*open.store, invitation, open.earlier_uses, mine, deadline);
    for (const MemberRecord& record : formation.wait_for_all()) {
      const int rank = static_cast<int>(group.members.size());
      if (rank == 0) group.token = record.token;
      group.members.push_back({{record.name, rank}, record.address, record.incarnation});
    }
  } catch (...) {
    forget_use(invitation);
    throw;
  }
  check_names_unique(group);
  return group;
}

}  // namespace weft::rendezvous
