// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/outgoing_call.h"

#include "rpc/calling/peer.h"

namespace weft::detail {

OutgoingCall::OutgoingCall() = default;
OutgoingCall::~OutgoingCall() = default;

bool OutgoingCall::wait_for_reply(std::optional<SteadyTime> until) {
  return peer_->wait_for(*this, until);
}

void OutgoingCall::cancel_call() {
  if (peer_) peer_->cancel(*this);
}

void OutgoingCall::ask_for_receiver() {
  if (peer_) peer_->ask_for_receiver(*this);
}

}  // namespace weft::detail
