// Where members of a set meet and exchange a value each. Runs on the first of them by name.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
    // Earlier rounds of this set were given up by those who are here now.
    for (auto old = meetings_.lower_bound({set, 0}); old != meetings_.end() && old->first < key;) {
      old = meetings_.erase(old);
    }
    Meeting& meeting = meetings_[key];
    meeting.values.insert_or_assign(who, std::move(value));
    meeting.answers[who] = std::move(answer);
    if (meeting.values.size() < set.size()) return;
    Meeting complete = std::move(meeting);
    meetings_.erase(key);
    for (auto& [name, reply] : complete.answers) reply(complete.values);
  }

  /// Who has not come yet.
  std::vector<std::string> missing(const std::vector<std::string>& set, uint64_t round) const {
    std::vector<std::string> names;
    auto found = meetings_.find({set, round});
    for (const std::string& name : set) {
      if (found == meetings_.end() || !found->second.values.contains(name)) names.push_back(name);
    }
    return names;
  }

  /// Gives everything up: whoever waits is not answered.
  void abandon_all() { meetings_.clear(); }

 private:
  using Key = std::pair<std::vector<std::string>, uint64_t>;
  struct Meeting {
    All values;
    std::map<std::string, Answer> answers;
  };
  std::map<Key, Meeting> meetings_;
};

}  // namespace weft::rpc
