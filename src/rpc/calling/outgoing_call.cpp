// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/outgoing_call.h"

#include "rpc/calling/calling_link.h"

namespace weft::detail {

OutgoingCall::OutgoingCall() = default;
OutgoingCall::~OutgoingCall() = default;

bool OutgoingCall::wait_for_reply(std::optional<SteadyTime> until) {
  return link_->wait_for(*this, until);
}

void OutgoingCall::cancel_call() {
  if (link_) link_->cancel(*this);
}

void OutgoingCall::ask_for_receiver() {
  if (link_) link_->ask_for_receiver(*this);
}

}  // namespace weft::detail
