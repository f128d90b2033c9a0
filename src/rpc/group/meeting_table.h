// Where members of a set meet and exchange a value each. Runs on the first of them by name. A
// deterministic core: told the time.
//
// The set's meetings are numbered: its rounds. A member that fails in a round comes to the same
// round again, so a round that the others have completed meanwhile is remembered: its number for
// good, the values of the latest rounds for `kept_for`.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace weft::rpc {

/// How a meeting ended for a member that came.
template <typename Value>
struct MeetingOutcome {
  enum class Status : uint8_t {
    kMet,
    kPassed,  // all met in this round before, and their values are no longer there
    kLost,    // a member is gone and will not come
  };
  Status status = Status::kMet;
  std::map<std::string, Value> values = {};
  std::string lost = {};  // its name
  std::string why = {};
};

/// `Value` is what each member brings.
template <typename Value>
class MeetingTable {
 public:
  using Set = std::vector<std::string>;  // of names, sorted
  using Outcome = MeetingOutcome<Value>;

  /// A member that has come.
  struct Guest {
    Value value;
    std::function<void(const Outcome&)> answer;
    /// False: the member has given up, or its connection is lost and it will come again.
    std::function<bool()> waits = [] { return true; };
  };

  /// Guests who are not answered, by name.
  using Left = std::multimap<std::string, Guest>;

  explicit MeetingTable(base::Duration kept_for) : kept_for_(kept_for) {}

  void on_arrival(const Set& set, uint64_t round, const std::string& who, Guest guest,
                  base::Time now) {
    Rounds& rounds = rounds_[set];
    if (rounds.is_complete(round)) return answer_late(rounds, round, guest);
    const auto [at, is_first] = meetings_.try_emplace({set, round});
    Meeting& meeting = at->second;
    if (is_first) meeting.began = now;
    std::map<std::string, Guest> comes;
    comes.emplace(who, std::move(guest));
    meeting.came.insert(who);
    let_go(meeting, meeting.guests.find(who));  // from here on nothing needs memory
    meeting.guests.merge(comes);
    if (meeting.guests.size() == set.size()) drop_those_who_left(meeting);
    if (meeting.guests.size() == set.size()) complete(at, now);
  }

  /// Takes `who` out of a round it gave up; returns the members that had not come by then. A member
  /// that came and withdrew did come.
  std::vector<std::string> withdraw(const Set& set, uint64_t round, const std::string& who) {
    const auto found = meetings_.find({set, round});
    std::vector<std::string> missing;
    if (rounds_.contains(set) && rounds_[set].is_complete(round)) return missing;
    for (const std::string& name : set) {
      if (found == meetings_.end() || !found->second.came.contains(name)) missing.push_back(name);
    }
    if (found != meetings_.end()) {
      let_go(found->second, found->second.guests.find(who));
      if (found->second.guests.empty()) meetings_.erase(found);
    }
    return missing;
  }

  /// Forgets guests that wait no more, meetings without guests, and old values. Returns the members
  /// that meetings have waited for since `since` or longer.
  std::set<std::string> sweep(base::Time now, base::Time since) {
    std::set<std::string> awaited;
    for (auto at = meetings_.begin(); at != meetings_.end();) {
      auto& [key, meeting] = *at;
      drop_those_who_left(meeting);
      if (meeting.guests.empty()) {
        at = meetings_.erase(at);
        continue;
      }
      if (meeting.began <= since) {
        for (const std::string& name : key.first) {
          if (!meeting.guests.contains(name)) awaited.insert(name);
        }
      }
      ++at;
    }
    for (auto& [set, rounds] : rounds_) {
      std::erase_if(rounds.kept, [&](const auto& each) { return each.second.until <= now; });
    }
    return awaited;
  }

  /// Ends every meeting that waits for `who`, which is gone.
  void on_lost(const std::string& who, const std::string& why) {
    for (auto at = meetings_.begin(); at != meetings_.end();) {
      const auto& set = at->first.first;
      const bool expected = std::find(set.begin(), set.end(), who) != set.end();
      if (!expected || at->second.guests.contains(who)) {
        ++at;
        continue;
      }
      const Meeting meeting = std::move(at->second);
      at = meetings_.erase(at);
      const Outcome outcome{Outcome::Status::kLost, {}, who, why};
      for (const auto& [name, guest] : meeting.guests) guest.answer(outcome);
    }
  }

  bool empty() const {
    if (!meetings_.empty()) return false;
    for (const auto& [set, rounds] : rounds_) {
      if (!rounds.kept.empty()) return false;
    }
    return true;
  }
  size_t meetings() const { return meetings_.size(); }

  /// The guests whom the table has forgotten since the last call. They end with the caller, who
  /// may be in a better place for it: an answer that is not given may be one of its own.
  Left take_left() { return std::exchange(left_, {}); }

  /// Gives everything up: nobody is answered.
  void clear() {
    for (auto& [key, meeting] : meetings_) left_.merge(meeting.guests);
    meetings_.clear();
    rounds_.clear();
  }

 private:
  using Key = std::pair<Set, uint64_t>;
  struct Meeting {
    std::map<std::string, Guest> guests;
    std::set<std::string> came;
    base::Time began{};
  };
  static constexpr size_t kMostKept = 8;  // rounds of a set; threads of a member meet at once
  struct Kept {
    std::map<std::string, Value> values;
    base::Time until;
  };
  struct Rounds {
    uint64_t complete_below = 0;
    std::set<uint64_t> complete_above;  // threads of one member may meet out of order
    std::map<uint64_t, Kept> kept;

    bool is_complete(uint64_t round) const {
      return round < complete_below || complete_above.contains(round);
    }
    void keep(uint64_t round, Kept completed) {
      kept.insert_or_assign(round, std::move(completed));
      if (kept.size() > kMostKept) kept.erase(kept.begin());
    }
    void mark_complete(uint64_t round) {
      complete_above.insert(round);
      while (complete_above.erase(complete_below) == 1) ++complete_below;
    }
  };

  using GuestAt = typename std::map<std::string, Guest>::iterator;
  // Needs no memory. Nothing if `guest` is the end.
  void let_go(Meeting& meeting, GuestAt guest) {
    if (guest != meeting.guests.end()) left_.insert(meeting.guests.extract(guest));
  }
  void drop_those_who_left(Meeting& meeting) {
    for (auto at = meeting.guests.begin(); at != meeting.guests.end();) {
      const auto guest = at++;
      if (!guest->second.waits()) let_go(meeting, guest);
    }
  }

  static void answer_late(const Rounds& rounds, uint64_t round, const Guest& guest) {
    const auto kept = rounds.kept.find(round);
    if (kept == rounds.kept.end()) return guest.answer({Outcome::Status::kPassed});
    guest.answer({Outcome::Status::kMet, kept->second.values});
  }

  void complete(typename std::map<Key, Meeting>::iterator at, base::Time now) {
    const auto [set, round] = at->first;
    Meeting meeting = std::move(at->second);
    meetings_.erase(at);
    Outcome outcome;
    for (auto& [name, guest] : meeting.guests) outcome.values.emplace(name, std::move(guest.value));
    Rounds& rounds = rounds_[set];
    rounds.mark_complete(round);
    // The member that leads is answered last: it may leave when it is.
    for (auto& [name, guest] : meeting.guests) {
      if (name != set.front()) guest.answer(outcome);
    }
    meeting.guests.at(set.front()).answer(outcome);
    rounds.keep(round, {std::move(outcome.values), now + kept_for_});
  }

  const base::Duration kept_for_;
  std::map<Key, Meeting> meetings_;
  Left left_;
  std::map<Set, Rounds> rounds_;
};

}  // namespace weft::rpc
