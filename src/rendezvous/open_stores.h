// The stores at which this process meets others, and how often it has met there.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "base/clock.h"
#include "rendezvous/invitation.h"
#include "rendezvous/store.h"

namespace weft::rendezvous {

/// The store of this invitation and how often this process has used it before. All members of a
/// group have used it equally often, and so the number tells their meetings apart.
struct OpenStore {
  std::shared_ptr<Store> store;
  int earlier_uses = 0;
};

/// The rank that hosts a store at a port opens it once, and keeps it for the groups that the
/// process joins there later and until it ends. Everybody else opens the store for each group: a
/// member is present in a file, and depends on c10d's connections, only while it joins. Throws
/// kInvalidArgument for an unknown method, kUnavailable when the store cannot be reached.
OpenStore open_store(const Invitation& invitation, base::Time deadline);
/// The group did not form: the next attempt meets where this one did.
void forget_use(const Invitation& invitation);

}  // namespace weft::rendezvous
