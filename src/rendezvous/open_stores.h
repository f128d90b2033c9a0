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

/// A store at a port is opened once and serves every group that the same rank of the same process
/// joins there, one after the other: the rank that hosts it need not close and open its port
/// between two groups. Throws kInvalidArgument for an unknown method, kUnavailable when the store
/// cannot be reached.
OpenStore open_store(const Invitation& invitation, base::Time deadline);
/// The group did not form: the next attempt meets where this one did.
void forget_use(const Invitation& invitation);

}  // namespace weft::rendezvous
