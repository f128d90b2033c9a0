// Which round of a set's meetings a member comes to next. A deterministic core.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::rpc {

class MeetingRounds {
 public:
  using Set = std::vector<std::string>;

  /// The lowest round that this member has neither met in nor is trying to.
  uint64_t take(const Set& set) {
    Rounds& rounds = rounds_[set];
    if (rounds.given_back.empty()) return rounds.next++;
    return rounds.given_back.extract(rounds.given_back.begin()).value();
  }
  /// The member failed in this round: its next attempt takes the same round, where late members
  /// are.
  void give_back(const Set& set, uint64_t round) { rounds_[set].given_back.insert(round); }

 private:
  struct Rounds {
    uint64_t next = 0;
    std::set<uint64_t> given_back;
  };
  std::map<Set, Rounds> rounds_;
};

}  // namespace weft::rpc
