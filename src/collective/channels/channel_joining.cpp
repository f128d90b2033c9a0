// How members depart from the operations of a channel, and begin anew together.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collective/channels/channel.h"
#include "collective/channels/operation.h"

namespace weft::collective {

Future<Outcome> Channel::call_roll() {
  return start(Terms{.kind = static_cast<uint8_t>(Kind::kRoll)}, everybody_,
               barrier_course(place_in(everybody_)));
}

Future<int> Channel::depart() {
  Lock lock(mutex_);
  if (has_left()) {
    throw Error(ErrorCode::kInvalidArgument, "a member joins that has joined, before all have");
  }
  const uint64_t number = kFarewells + epoch_;
  const Terms terms{.kind = static_cast<uint8_t>(Kind::kFarewell), .elements = next_};
  // The others may have a lot to do yet: only their lives bound it.
  const auto operation = enter(lock, number, terms, everybody_,
                               barrier_course(place_in(everybody_)), base::Time::max());
  departed_[epoch_].emplace(rank_, next_);
  lock.unlock();
  const Future<int> last =
      operation->future().then([](const Outcome& outcome) { return outcome.present.at(0); });
  outside_->watch();
  begin(operation);
  return last;
}

// Under the lock. All have departed; says who did so last.
int Channel::conclude_epoch() {
  const std::map<int, uint64_t> departed = std::move(departed_.extract(epoch_).mapped());
  const auto latest =
      std::max_element(departed.begin(), departed.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  ++epoch_;
  next_ = latest->second;
  // Roll calls that came before this member departed, which it never answered.
  const auto end = early_.lower_bound(next_);
  for (auto at = early_.begin(); at != end; at = early_.erase(at)) {
    early_parts_ -= at->second.size();
  }
  return latest->first;
}

// Roll calls may wait for nobody else; other operations need not wait any longer.
void Channel::on_departed() {
  std::vector<OperationRef> rolls;
  std::optional<Error> left;
  {
    Lock lock(mutex_);
    for (const auto& [number, operation] : operations_) {
      if (is_roll(operation->terms)) rolls.push_back(operation);
      if (number >= kFarewells) continue;
      for (const int rank : missing_of(*operation)) {
        if (!has_departed(rank, number)) continue;
        left = Error(ErrorCode::kInvalidArgument,
                     fmt::format("{}: {} has joined and does not take part",
                                 title(number, operation->terms), outside_->name(rank)));
      }
    }
  }
  if (left) return fail_and_tell(*left);
  for (const OperationRef& roll : rolls) {
    Lock lock(mutex_);
    if (!roll->advancing) advance(roll, lock);
  }
}

bool Channel::has_left() const {
  const auto departed = departed_.find(epoch_);
  return departed != departed_.end() && departed->second.contains(rank_);
}

// Before that operation.
bool Channel::has_departed(int rank, uint64_t number) const {
  const auto departed = departed_.find(epoch_);
  if (departed == departed_.end()) return false;
  const auto found = departed->second.find(rank);
  return found != departed->second.end() && found->second <= number;
}

bool Channel::is_excused(const Operation& operation, int rank) const {
  return is_roll(operation.terms) && has_departed(rank, operation.number);
}

}  // namespace weft::collective
