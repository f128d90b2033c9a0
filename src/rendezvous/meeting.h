// How the members of a group find each other at a store.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rendezvous/group.h"
#include "rendezvous/invitation.h"

namespace weft::rendezvous {

/// Tells the others about `self` and waits for all of them. Throws kUnavailable naming the ranks
/// that did not come by the invitation's timeout, which counts for everything together;
/// kInvalidArgument for names that are not unique and for world sizes that differ.
Group meet(const Invitation& invitation, const Member& self);

}  // namespace weft::rendezvous
