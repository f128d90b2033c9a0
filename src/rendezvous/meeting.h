// Joining a group: its members find each other at a store.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rendezvous/group.h"
#include "rendezvous/invitation.h"

namespace weft::rendezvous {

/// Tells the others about `self` and waits for all of them. Throws kUnavailable, naming the ranks
/// that are missing, if that takes longer than the invitation's timeout; kInvalidArgument if names
/// are not unique or world sizes differ.
Group meet(const Invitation& invitation, const Member& self);

}  // namespace weft::rendezvous
