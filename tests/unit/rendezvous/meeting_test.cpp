// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Sets a variable for one test; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

std::string fresh_file(const char* name) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("weft_" + std::string(name) + "_" + std::to_string(getpid()));
  std::filesystem::remove(path);
  return "file://" + path.string();
}

Member member(const std::string& name) { return {{name, -1}, "address of " + name, 7}; }

struct Outcome {
  Group group;
  std::string error;
};

std::vector<Outcome> meet_all(const std::string& method, const std::vector<std::string>& names) {
  std::vector<Outcome> outcomes(names.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < names.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        outcomes[i].group = meet({method, static_cast<int>(i), static_cast<int>(names.size()), 30s},
                                 member(names[i]));
      } catch (const Error& error) {
        outcomes[i].error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::string refusal(const std::string& method, int rank, int world_size) {
  try {
    read_invitation(method, rank, world_size, 1s);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

TEST(Invitation, OptionsWinOverTheEnvironment) {
  const Variable rank("RANK", "5"), size("WORLD_SIZE", "9"), where("WEFT_RENDEZVOUS", "file:///x");

  const Invitation given = read_invitation("tcp://h:1", 1, 2, 1s);
  const Invitation found = read_invitation("", -1, -1, 1s);

  EXPECT_EQ(given.method, "tcp://h:1");
  EXPECT_EQ(given.rank, 1);
  EXPECT_EQ(given.world_size, 2);
  EXPECT_EQ(found.method, "file:///x");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 9);
}

TEST(Invitation, IsByEnvironmentIfNothingIsSaid) {
  const Variable where("WEFT_RENDEZVOUS", nullptr);

  EXPECT_EQ(read_invitation("", 0, 1, 1s).method, "env://");
}

TEST(Invitation, NamesTheVariableThatIsMissingOrWrong) {
  const Variable no_rank("RANK", nullptr), size("WORLD_SIZE", "two");

  EXPECT_THAT(refusal("env://", -1, 2), HasSubstr("RANK"));
  EXPECT_THAT(refusal("env://", 0, -1), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refusal("env://", 0, -1), HasSubstr("two"));
  EXPECT_THAT(refusal("env://", 2, 2), HasSubstr("rank 2 in a group of 2"));
}

TEST(Invitation, AGroupLargerThanRanksHaveBitsIsRefused) {
  const Variable size("WORLD_SIZE", "32768");

  EXPECT_EQ(read_invitation("env://", 0, 32'767, 1s).world_size, 32'767);
  EXPECT_THAT(refusal("env://", 0, 32'768), HasSubstr("at most 32767 members"));
  EXPECT_THAT(refusal("env://", 0, -1), HasSubstr("the world size is 32768"));
}

TEST(Meeting, EverybodyLearnsOfEverybody) {
  const auto outcomes = meet_all(fresh_file("all"), {"a", "b", "c"});

  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Group& group = outcomes[i].group;
    ASSERT_EQ(outcomes[i].error, "");
    ASSERT_EQ(group.members.size(), 3u);
    EXPECT_EQ(group.self, static_cast<int>(i));
    EXPECT_EQ(group.token, outcomes[0].group.token);
    EXPECT_EQ(group.members[2].info, (WorkerInfo{"c", 2}));
    EXPECT_EQ(group.members[1].address, "address of b");
  }
}

TEST(Meeting, ASecondGroupMayMeetAtTheSamePlace) {
  const std::string method = fresh_file("twice");

  const auto first = meet_all(method, {"a", "b"});
  const auto second = meet_all(method, {"c", "d"});

  EXPECT_EQ(second[0].error, "");
  EXPECT_EQ(second[0].group.members[1].info.name, "d");
  EXPECT_NE(first[0].group.token, second[0].group.token);
}

TEST(Meeting, OneNameTwiceIsRefusedByAll) {
  const auto outcomes = meet_all(fresh_file("names"), {"same", "other", "same"});

  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.error, HasSubstr("kInvalidArgument"));
    EXPECT_THAT(outcome.error, HasSubstr("\"same\""));
  }
}

TEST(Meeting, NamesTheRanksThatDidNotCome) {
  try {
    meet({fresh_file("missing"), 1, 3, 300ms}, member("b"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(), HasSubstr("missing ranks: 0, 2"));
  }
}

TEST(Meeting, AnUnknownMethodIsRefused) {
  for (const char* method :
       {"http://x", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:70000", "file://", ""}) {
    try {
      meet({method, 0, 1, 1s}, member("a"));
      ADD_FAILURE() << method;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << method;
    }
  }
}

}  // namespace
}  // namespace weft::rendezvous
