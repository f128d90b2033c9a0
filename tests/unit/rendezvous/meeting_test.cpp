// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "support/free_port.h"
#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

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

// A folder for the files of one test.
class Folder {
 public:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string file(const std::string& name) const { return "file://" + path(name); }

 private:
  base::TemporaryDirectory directory_{"weft-test"};
};

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
  const Folder folder;

  const auto outcomes = meet_all(folder.file("store"), {"a", "b", "c"});

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
  const Folder folder;
  const std::string method = folder.file("store");

  const auto first = meet_all(method, {"a", "b"});
  const auto second = meet_all(method, {"c", "d"});

  EXPECT_EQ(second[0].error, "");
  EXPECT_EQ(second[0].group.members[1].info.name, "d");
  EXPECT_NE(first[0].group.token, second[0].group.token);
}

TEST(Meeting, OneNameTwiceIsRefusedByAll) {
  const Folder folder;

  const auto outcomes = meet_all(folder.file("store"), {"same", "other", "same"});

  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.error, HasSubstr("kInvalidArgument"));
    EXPECT_THAT(outcome.error, HasSubstr("\"same\""));
  }
}

struct Failure {
  ErrorCode code = {};
  std::string text;
  std::chrono::steady_clock::duration after = {};
};

Failure failure_of(const Invitation& invitation) {
  const auto start = std::chrono::steady_clock::now();
  try {
    meet(invitation, member("somebody"));
    ADD_FAILURE() << "the group formed at " << invitation.method;
    return {};
  } catch (const Error& error) {
    return {error.code(), error.message(), std::chrono::steady_clock::now() - start};
  }
}

TEST(Meeting, NamesTheRanksThatDidNotCome) {
  const Folder folder;

  const Failure failure = failure_of({folder.file("store"), 1, 3, 100ms});

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_EQ(failure.text, "the group of 3 at " + folder.file("store") +
                              " did not form within 100 ms; missing ranks: 0, 2");
}

TEST(Meeting, TheHostOfAStoreNamesTheRanksThatDidNotCome) {
  const std::string method = "tcp://127.0.0.1:" + std::to_string(test::free_port());

  const Failure failure = failure_of({method, 0, 3, 300ms});

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_EQ(failure.text,
            "the group of 3 at " + method + " did not form within 300 ms; missing ranks: 1, 2");
  EXPECT_LT(failure.after, 10s);
}

TEST(Meeting, AStoreThatNobodyHostsIsGivenUpAtTheLimitAndNotBefore) {
  const std::string method = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  // c10d cuts limits to whole seconds, and tries to connect once per second.
  for (const auto limit : {300ms, 1700ms}) {
    const Failure failure = failure_of({method, 1, 2, limit});

    EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
    EXPECT_THAT(failure.text, HasSubstr("within " + std::to_string(limit.count()) + " ms"));
    EXPECT_THAT(failure.text, HasSubstr("nobody answers at 127.0.0.1:"));
    EXPECT_THAT(failure.text, HasSubstr("Connection refused"));
    EXPECT_THAT(failure.text, Not(HasSubstr("\n")));
    EXPECT_GE(failure.after, limit);
    EXPECT_LT(failure.after, limit + 10s);
  }
}

TEST(Meeting, AStoreThatDoesNotAnswerIsGivenUpAtTheLimit) {
  const test::SilentPort silent;
  const std::string method = "tcp://127.0.0.1:" + std::to_string(silent.number());

  const Failure failure = failure_of({method, 1, 40, 300ms});

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.text, HasSubstr("does not answer"));
  EXPECT_THAT(failure.text, Not(HasSubstr("\n")));
  EXPECT_LT(failure.after, 10s);
}

TEST(Meeting, APortThatIsTakenIsReportedAtOnceInOneLine) {
  const test::SilentPort taken;

  const Failure failure =
      failure_of({"tcp://127.0.0.1:" + std::to_string(taken.number()), 0, 2, 60s});

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.text, HasSubstr("ddress already in use"));  // either way, by libtorch
  EXPECT_THAT(failure.text, Not(HasSubstr("\n")));
  EXPECT_LT(failure.after, 30s);
}

TEST(Meeting, GroupsMeetAtAStoreOneAfterTheOther) {
  const std::string method = "tcp://localhost:" + std::to_string(test::free_port());

  const auto first = meet_all(method, {"a", "b", "c"});
  const auto second = meet_all(method, {"d", "e", "f"});

  for (const Outcome& outcome : first) EXPECT_EQ(outcome.error, "");
  for (const Outcome& outcome : second) EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(second[0].group.members[2].info.name, "f");
  EXPECT_NE(first[0].group.token, second[0].group.token);
}

// The members come at intervals shorter than the limit, the last one long after it.
TEST(Meeting, TheLimitCountsForAllMembersTogether) {
  const Folder folder;
  const std::string method = folder.file("store");
  std::vector<std::future<Group>> others;
  for (int rank = 0; rank < 3; ++rank) {
    others.push_back(std::async(std::launch::async, [&, rank] {
      std::this_thread::sleep_for((rank + 1) * 250ms);
      return meet({method, rank, 4, 30s}, member("member" + std::to_string(rank)));
    }));
  }

  const Failure failure = failure_of({method, 3, 4, 300ms});
  const Group group = meet({method, 3, 4, 30s}, member("last"));

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.text, HasSubstr("2"));
  for (auto& other : others) EXPECT_EQ(other.get().token, group.token);
}

TEST(Meeting, APathThatCannotBeAFileIsRefusedAtOnce) {
  const Folder folder;
  std::ofstream(folder.path("file")) << "";

  for (const std::string& path : {folder.path(""), folder.path("missing/store"),
                                  folder.path("file/store"), std::string("/dev/full")}) {
    const Failure failure = failure_of({"file://" + path, 0, 2, 60s});

    EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument) << failure.text;
    EXPECT_THAT(failure.text, HasSubstr("rendezvous file " + path));
    EXPECT_LT(failure.after, 10s);
  }
}

// Looks at files as a user who is not root, on this thread alone.
class AsNobody {
 public:
  AsNobody() : before_(syscall(SYS_setfsuid, 65534)) {}
  ~AsNobody() { syscall(SYS_setfsuid, before_); }

 private:
  long before_;
};

TEST(Meeting, AFileThatMayNotBeReadIsRefusedAtOnce) {
  const Folder folder;
  std::ofstream(folder.path("store")) << "";
  ASSERT_EQ(chmod(folder.path("").c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder.path("store").c_str(), 0), 0);

  const AsNobody nobody;
  const Failure failure = failure_of({folder.file("store"), 0, 2, 60s});

  EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument) << failure.text;
  EXPECT_THAT(failure.text, HasSubstr(folder.path("store")));
  EXPECT_THAT(failure.text, HasSubstr("Permission denied"));
  EXPECT_LT(failure.after, 10s);
}

// No file of this process may grow beyond a few bytes: a write fails as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_before_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, signal_before_);
  }

 private:
  sighandler_t signal_before_;
  rlimit before_ = {};
};

TEST(Meeting, AFullDiskIsReportedAtOnce) {
  const Folder folder;
  Failure failure;

  {
    const FullDisk full(40);
    failure = failure_of({folder.file("store"), 0, 2, 60s});
  }

  EXPECT_EQ(failure.code, ErrorCode::kUnavailable) << failure.text;
  EXPECT_THAT(failure.text, HasSubstr("cannot write the rendezvous file " + folder.path("store")));
  EXPECT_THAT(failure.text, HasSubstr("make room"));
  EXPECT_LT(failure.after, 10s);
  // The next member finds no half record.
  EXPECT_EQ(meet({folder.file("store"), 0, 1, 60s}, member("a")).members.size(), 1u);
}

TEST(Meeting, AFileThatIsDamagedMeanwhileEndsItAtOnce) {
  const Folder folder;
  auto waiting = std::async(std::launch::async, [&] {
    return failure_of({folder.file("store"), 0, 2, 60s});
  });
  struct stat found = {};
  while (stat(folder.path("store").c_str(), &found) != 0 || found.st_size < 20) {
    std::this_thread::yield();
  }

  std::ofstream(folder.path("store"), std::ios::app) << "half";

  const Failure failure = waiting.get();
  EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument) << failure.text;
  EXPECT_THAT(failure.text, HasSubstr(folder.path("store")));
  EXPECT_THAT(failure.text, HasSubstr("4 bytes of an unfinished record"));
  EXPECT_LT(failure.after, 30s);
}

TEST(Meeting, AnUnknownMethodIsRefused) {
  for (const char* method : {"http://x", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:70000",
                             "file://", "file://relative", ""}) {
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
