// Decides when a group may stop: no member has work left, and no call is on its way to make some. A
// deterministic core that runs on the coordinator of the shutdown.
//
// Every member that wants to stop reports, whenever it has nothing to do, how many calls it has
// made and served so far. A wave is complete when every living member reported. The group is
// finished when two waves in a row found every member idle with unchanged counts: then, between the
// two, all were idle at the same instant, and a call is counted at its caller until it is answered,
// so none was on its way.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

namespace weft::rpc {

class Termination {
 public:
  struct Verdict {
    bool finished = false;
    std::vector<int32_t> dead;  // members that were given up
  };
  using Answer = std::function<void(const Verdict&)>;

  explicit Termination(int members) : members_(members) {}

  /// `activity` changes whenever the member begins or serves a call. The answer comes when the wave
  /// is complete. A second report of one member within a wave replaces the first.
  void on_report(int rank, bool idle, uint64_t activity, Answer answer);
  void on_dead(int rank);
  void on_alive(int rank) { dead_.erase(rank); }

  /// Members that neither reported in this wave nor are dead.
  std::vector<int> missing() const;
  const std::set<int>& dead() const { return dead_; }

 private:
  struct Report {
    bool idle;
    uint64_t activity;
    friend bool operator==(const Report&, const Report&) = default;
  };
  void finish_wave_if_complete();

  int members_;
  std::set<int> dead_;
  std::map<int, Report> wave_;
  std::map<int, Report> last_wave_;
  std::map<int, Answer> answers_;
};

}  // namespace weft::rpc
