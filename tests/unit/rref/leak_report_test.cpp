// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/log.h"
#include "weft/rref.h"

namespace weft::leak_report {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct Game {
  int64_t score = 0;
  int64_t play() { return ++score; }
};
int64_t play(RRef<Game> game) { return game.rpc_sync<&Game::play>(); }

// The lines about references that are logged while it lives.
class Leaks {
 public:
  Leaks() {
    set_log_sink([this](LogLevel, std::string_view line) {
      std::lock_guard lock(mutex_);
      if (line.find("at shutdown") != line.npos) lines_.emplace_back(line);
    });
  }
  ~Leaks() { set_log_sink({}); }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

Options with_report() {
  Options options;
  options.rref_leak_report = true;
  return options;
}

TEST(RRefLeakReport, NamesTypeAndHolders) {
  Leaks leaks;
  test::LoopbackGroup group({"a", "b"}, with_report());
  const auto one = remote<Game>(group[0], "b");
  const auto two = remote<Game>(group[0], "b");
  EXPECT_EQ(one.rpc_sync<&Game::play>() + two.rpc_sync<&Game::play>(), 2);
  group.shut_down();
  EXPECT_THAT(leaks.lines(),
              UnorderedElementsAre(
                  AllOf(HasSubstr("b"), HasSubstr("2 objects of type weft::leak_report::Game are "
                                                  "still referred to by a (2)")),
                  AllOf(HasSubstr("a"), HasSubstr("2 references to objects of b are still held"))));
}

// Releases that are on their way are waited for.
TEST(RRefLeakReport, SaysNothingOfWhatWasDroppedJustBefore) {
  for (int i = 0; i < 20; ++i) {
    Leaks leaks;
    test::LoopbackGroup group({"a", "b", "c"}, with_report());
    {
      const auto game = remote<Game>(group[0], "b");
      EXPECT_EQ(group[0].sync<play>("c", game), 1);
      EXPECT_EQ(group[1].sync<play>("a", RRef<Game>(group[1], Game{})), 1);
    }
    group.shut_down();
    ASSERT_THAT(leaks.lines(), IsEmpty());
  }
}

TEST(RRefLeakReport, IsNotThereUnlessAskedFor) {
  Leaks leaks;
  test::LoopbackGroup group({"a", "b"});
  const auto game = remote<Game>(group[0], "b");
  game.rpc_sync<&Game::play>();
  group.shut_down();
  EXPECT_THAT(leaks.lines(), IsEmpty());
}

}  // namespace weft::leak_report
