// The stores that this process has used, and how often it has used each.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "base/clock.h"
#include "rendezvous/invitation.h"
#include "rendezvous/store.h"

namespace weft::rendezvous {

/// The store of an invitation, and how often this process has used it before. All members of a
/// group have used it equally often. The number is part of the keys, so that the keys of one group
/// differ from those of the next.
struct OpenStore {
  std::shared_ptr<Store> store;
  int earlier_uses = 0;
};

/// The process that hosts a TcpStore opens it once and keeps it until the process ends, also for
/// groups that it joins later. All other processes open the store anew for each group: a member is
/// present in a file, and depends on c10d's connections, only while it joins. Throws
/// kInvalidArgument for an unknown method, kUnavailable if the store cannot be reached.
OpenStore open_store(const Invitation& invitation, base::Time deadline);
/// To be called if the group did not form: the next attempt gets the same number of earlier uses.
void forget_use(const Invitation& invitation);

}  // namespace weft::rendezvous
