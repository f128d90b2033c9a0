// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/termination.h"

#include <algorithm>
#include <utility>

namespace weft::rpc {

void Termination::on_report(int rank, bool idle, uint64_t activity, Answer answer) {
  dead_.erase(rank);  // it speaks
  wave_[rank] = {idle, activity};
  Answer replaced = std::exchange(answers_[rank], std::move(answer));
  if (replaced) replaced({});
  finish_wave_if_complete();
}

void Termination::on_dead(int rank) {
  if (wave_.contains(rank)) return;  // an old rumour: it has spoken since
  dead_.insert(rank);
  // The dead member stays in the last wave, which therefore does not match: calls that it caused
  // before it died may still be on their way.
  finish_wave_if_complete();
}

std::vector<int> Termination::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < members_; ++rank) {
    if (!wave_.contains(rank) && !dead_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Termination::finish_wave_if_complete() {
  if (wave_.empty() || !missing().empty()) return;
  const bool all_idle =
      std::all_of(wave_.begin(), wave_.end(), [](const auto& each) { return each.second.idle; });
  Verdict verdict;
  verdict.finished = all_idle && wave_ == last_wave_;
  verdict.dead.assign(dead_.begin(), dead_.end());
  last_wave_ = std::move(wave_);
  wave_.clear();
  std::map<int, Answer> answers;
  answers.swap(answers_);
  for (auto& [rank, answer] : answers) answer(verdict);
}

}  // namespace weft::rpc
