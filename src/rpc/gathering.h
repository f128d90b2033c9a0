// Where members of a set meet and exchange a value each. Runs on the first of them by name.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::rpc {

/// A deterministic core; `Value` is what each one brings.
template <typename Value>
class Gathering {
 public:
  using All = std::map<std::string, Value>;
  using Answer = std::function<void(const All&)>;

  /// `round` counts this set's meetings at this member, so that one who is late for a round that
  /// failed does not meet those of the next.
  void on_arrival(const std::vector<std::string>& set, uint64_t round, const std::string& who,
                  Value value, Answer answer) {
    const Key key{set, round};
    Meeting& meeting = meetings_[key];
    meeting.came.insert(who);
    meeting.values.insert_or_assign(who, std::move(value));
    meeting.answers[who] = std::move(answer);
    if (meeting.values.size() < set.size()) return;
    Meeting complete = std::move(meeting);
    meetings_.erase(key);
    // Whoever leads is answered last: he may leave when he is.
    for (auto& [name, reply] : complete.answers) {
      if (name != set.front()) reply(complete.values);
    }
    complete.answers[set.front()](complete.values);
  }

  /// Who has not come yet; one that came and withdrew did come.
  std::vector<std::string> missing(const std::vector<std::string>& set, uint64_t round) const {
    std::vector<std::string> names;
    auto found = meetings_.find({set, round});
    for (const std::string& name : set) {
      if (found == meetings_.end() || !found->second.came.contains(name)) names.push_back(name);
    }
    return names;
  }

  /// Takes `who` out of a round it gave up; returns who had not come by then.
  std::vector<std::string> withdraw(const std::vector<std::string>& set, uint64_t round,
                                    const std::string& who) {
    std::vector<std::string> still_missing = missing(set, round);
    auto found = meetings_.find({set, round});
    if (found != meetings_.end()) {
      found->second.values.erase(who);
      found->second.answers.erase(who);
      if (found->second.values.empty()) meetings_.erase(found);
    }
    return still_missing;
  }

  /// Gives everything up: whoever waits is not answered.
  void abandon_all() { meetings_.clear(); }

 private:
  using Key = std::pair<std::vector<std::string>, uint64_t>;
  struct Meeting {
    All values;
    std::map<std::string, Answer> answers;
    std::set<std::string> came;
  };
  std::map<Key, Meeting> meetings_;
};

}  // namespace weft::rpc
