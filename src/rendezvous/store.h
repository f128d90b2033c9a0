// c10d's key-value stores, which is where groups meet.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rendezvous/meeting.h"

namespace weft::rendezvous {

/// The store of this invitation and how often this process has used it before. One store serves
/// every group that the same rank of the same process joins there, one after the other, so that the
/// rank that hosts it need not close and open its port between two groups.
struct OpenStore {
  c10::intrusive_ptr<c10d::Store> store;
  int earlier_uses = 0;
};

/// Throws kInvalidArgument for an unknown method, kUnavailable when the store cannot be reached.
OpenStore open_store(const Invitation& invitation);
/// The group did not form: the next attempt meets where this one did.
void forget_use(const Invitation& invitation);

}  // namespace weft::rendezvous
