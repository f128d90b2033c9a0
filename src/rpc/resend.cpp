// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/resend.h"

namespace weft::rpc {

void Resending::on_failed(AgentCore& agent, int rank, const Error& error, Again again,
                          GiveUp give_up) const {
  if (!Liveness::leaves_open_whether_alive(error)) return give_up(error);
  Resending next = *this;
  if (++next.attempts_ == kMostAttempts) return give_up(error);
  agent.runtime().liveness.when_known(rank, [again = std::move(again), give_up = std::move(give_up),
                                             error, next](const std::optional<Error>& gone) {
    if (!gone) return again(next);
    give_up(error.may_have_run() ? gone->after_sending() : *gone);
  });
}

}  // namespace weft::rpc
