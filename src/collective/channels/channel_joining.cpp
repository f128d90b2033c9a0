// nn::join: members depart from a channel one after the other and begin the next epoch together.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collective/channels/channel.h"
#include "collective/channels/operation.h"

namespace weft::collective {

Future<Outcome> Channel::agree_on_members(Divisor divisor) {
  return start(Signature{.kind = static_cast<uint8_t>(Kind::kMembership),
                         .op = static_cast<uint8_t>(divisor)},
               everybody_, barrier_algorithm(place_in(everybody_)));
}

Future<int> Channel::depart() {
  OperationRef operation;
  std::optional<Error> wrong;
  {
    const Lock lock(mutex_);
    if (has_left()) {
      throw Error(ErrorCode::kInvalidArgument, "a member joins that has joined, before all have");
    }
    const uint64_t number = kDepartures + epoch_;
    const Signature signature{.kind = static_cast<uint8_t>(Kind::kDeparture), .elements = next_};
    // No deadline: the others may have many steps left. It fails if one of them is lost.
    operation = enter(number, signature, everybody_, barrier_algorithm(place_in(everybody_)),
                      base::Time::max(), wrong);
    if (!wrong) departed_[epoch_].emplace(rank_, next_);
  }
  give_up(wrong);
  const Future<int> last =
      operation->future().then([](const Outcome& outcome) { return outcome.present.at(0); });
  attempt(*operation, [&] { outside_->watch(); });
  begin(operation);
  return last;
}

// All have departed. Returns the rank of a member that took part in the most operations.
int Channel::conclude_epoch() {
  const std::map<int, uint64_t> departed = std::move(departed_.extract(epoch_).mapped());
  const auto latest =
      std::max_element(departed.begin(), departed.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  ++epoch_;
  next_ = latest->second;
  // Drop chunks of membership rounds that came before this member departed and that it never began.
  const auto end = early_.lower_bound(next_);
  for (auto at = early_.begin(); at != end; at = early_.erase(at)) {
    early_chunks_ -= at->second.size();
  }
  return latest->first;
}

// After a departure: a membership round may have all it waits for now; any other operation that
// waits for the departed member fails the channel.
void Channel::on_departed() {
  std::vector<OperationRef> membership_rounds;
  std::optional<Error> left;
  {
    Lock lock(mutex_);
    for (const auto& [number, operation] : operations_) {
      if (asks_membership(operation->signature)) membership_rounds.push_back(operation);
      if (number >= kDepartures) continue;
      for (const int rank : missing_of(*operation)) {
        if (!has_departed(rank, number)) continue;
        left = Error(ErrorCode::kInvalidArgument,
                     fmt::format("{}: {} has joined and does not take part",
                                 title(number, operation->signature), outside_->name(rank)));
      }
    }
  }
  if (left) return fail_and_tell(*left);
  for (const OperationRef& membership : membership_rounds) advance(membership);
}

bool Channel::has_left() const {
  const auto departed = departed_.find(epoch_);
  return departed != departed_.end() && departed->second.contains(rank_);
}

// Whether the member departed before that operation.
bool Channel::has_departed(int rank, uint64_t number) const {
  const auto departed = departed_.find(epoch_);
  if (departed == departed_.end()) return false;
  const auto found = departed->second.find(rank);
  return found != departed->second.end() && found->second <= number;
}

bool Channel::is_excused(const Operation& operation, int rank) const {
  return asks_membership(operation.signature) && has_departed(rank, operation.number);
}

}  // namespace weft::collective
