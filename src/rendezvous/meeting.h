// Where the members of a group find each other: env://, tcp://host:port, file:///path.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rendezvous/group.h"
#include "rendezvous/invitation.h"

namespace weft::rendezvous {

/// Tells the others about `self` and waits for all of them. Throws kUnavailable naming the ranks
/// that did not come, kInvalidArgument for names that are not unique.
Group meet(const Invitation& invitation, const Member& self);

}  // namespace weft::rendezvous
