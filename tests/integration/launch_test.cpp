// `weft run`, weft::launch and WorkerGroup with real processes.
// SPDX-License-Identifier: BSD-3-Clause

#include "weft/launch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

#include "launched_program.h"
#include "process/worker_group.h"
#include "support/process_part.h"

namespace weft {
namespace {

using process::WorkerGroup;
using process::WorkerGroupOptions;
using test::LaunchedProgram;
using test::TestDirectory;
using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// For lines whose order among the workers is not given.
Lines sorted_lines_of(const std::string& text) {
  Lines lines = lines_of(text);
  std::ranges::sort(lines);
  return lines;
}

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}

// `weft run -n workers options... sh -c script`
std::vector<std::string> weft_run(int workers, const std::string& script,
                                  const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{WEFT_TOOL_PATH, "run", "-n", std::to_string(workers)};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

// A named pipe that makes one worker wait for another: opening one end blocks until the other is
// opened.
class WeftRunWithPipe : public testing::Test {
 protected:
  WeftRunWithPipe() {
    if (::mkfifo((directory_ / "a").c_str(), 0600) != 0) process::throw_errno("mkfifo");
  }

  LaunchedProgram::Environment environment() const { return {{"A", directory_ / "a"}}; }

  TestDirectory directory_;
};

TEST(WeftRun, PrefixesEveryLineByItsRank) {
  LaunchedProgram weft(weft_run(2, "echo one; echo two >&2; echo"));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(sorted_lines_of(weft.output()), (Lines{"[0] ", "[0] one", "[1] ", "[1] one"}));
  EXPECT_EQ(sorted_lines_of(weft.error()), (Lines{"[0] two", "[1] two"}));
}

TEST(WeftRun, AlignsPrefixes) {
  LaunchedProgram weft(weft_run(11, "echo x"));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_TRUE(contains(weft.output(), "[ 9] x\n"));
  EXPECT_TRUE(contains(weft.output(), "[10] x\n"));
}

TEST(WeftRun, PrintsBareLinesWhenAsked) {
  LaunchedProgram weft(weft_run(2, "echo x", {"--no-prefix"}));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output(), "x\nx\n");
}

TEST_F(WeftRunWithPipe, DoesNotTearLines) {
  LaunchedProgram weft(weft_run(2, R"(
    if [ $RANK = 0 ]; then printf first; echo > $A; read x; echo second
    else read x < $A; echo between; fi)"),
                       environment());
  ASSERT_TRUE(weft.prints("between"));

  weft.write_input("go\n");

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output(), "[1] between\n[0] firstsecond\n");
}

TEST(WeftRun, PrintsAnUnfinishedLastLine) {
  LaunchedProgram weft(weft_run(1, "echo a; printf b"));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output(), "[0] a\n[0] b\n");
}

TEST(WeftRun, KeepsTheOrderOfEachWorker) {
  constexpr size_t kLines = 20000;
  LaunchedProgram weft(weft_run(3, "seq 1 20000"));

  EXPECT_EQ(weft.exit_code(), 0);
  std::map<std::string, size_t> last;
  for (const std::string& line : lines_of(weft.output())) {
    ASSERT_EQ(line.substr(4), std::to_string(++last[line.substr(0, 4)]));
  }
  EXPECT_EQ(last,
            (std::map<std::string, size_t>{{"[0] ", kLines}, {"[1] ", kLines}, {"[2] ", kLines}}));
}

TEST(WeftRun, PassesOnALineOfOneMebibyte) {
  LaunchedProgram weft(weft_run(2, "head -c 1048576 /dev/zero | tr '\\0' x; echo"));

  EXPECT_EQ(weft.exit_code(), 0);
  const std::string line(1048576, 'x');
  EXPECT_TRUE(weft.output() == "[0] " + line + "\n[1] " + line + "\n" ||
              weft.output() == "[1] " + line + "\n[0] " + line + "\n");
}

TEST(WeftRun, PrintsNothingForWorkersThatPrintNothing) {
  LaunchedProgram weft(weft_run(2, "exec >&- 2>&-; exit 0"));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output() + weft.error(), "");
}

TEST(WeftRun, GivesTheProgramAllThatFollowsIt) {
  LaunchedProgram plain(
      {WEFT_TOOL_PATH, "run", "-n", "1", "echo", "--help", "-n", "3", "--", "run"});
  LaunchedProgram dashed({WEFT_TOOL_PATH, "run", "-n1", "--", "echo", "--", "--no-prefix"});

  EXPECT_EQ(plain.exit_code(), 0);
  EXPECT_EQ(plain.output(), "[0] --help -n 3 -- run\n");
  EXPECT_EQ(dashed.exit_code(), 0);
  EXPECT_EQ(dashed.output(), "[0] -- --no-prefix\n");
}

TEST(WeftRun, GivesItsInputToRank0) {
  LaunchedProgram weft(weft_run(2, "cat"));

  weft.write_input("hello\n");
  weft.close_input();

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output(), "[0] hello\n");
}

TEST(WeftRun, DescribesTheGroupInTheEnvironment) {
  LaunchedProgram weft(weft_run(2,
                                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                                "$MASTER_ADDR; test $MASTER_PORT -gt 0"));

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(sorted_lines_of(weft.output()),
            (Lines{"[0] 0 2 0 2 127.0.0.1", "[1] 1 2 1 2 127.0.0.1"}));
}

TEST(WeftRun, KeepsAMeetingPlaceThatIsSet) {
  LaunchedProgram weft(weft_run(1, "echo $RANK $WEFT_RENDEZVOUS $MASTER_ADDR $MASTER_PORT"),
                       {{"RANK", "7"},
                        {"WEFT_RENDEZVOUS", "tcp://host:1"},
                        {"MASTER_ADDR", "host"},
                        {"MASTER_PORT", "2"}});

  EXPECT_EQ(weft.exit_code(), 0);
  EXPECT_EQ(weft.output(), "[0] 0 tcp://host:1 host 2\n");
}

TEST(WeftRun, MakesAPrivateDirectoryAndRemovesIt) {
  for (const std::string ending :
       {"exit 0", "exit 3", "kill -KILL $$", "kill -TERM $PPID; exec sleep 1000"}) {
    const TestDirectory temporary;
    LaunchedProgram weft(weft_run(1, R"(
      store=${WEFT_RENDEZVOUS#file://}; touch $store; stat -c %a ${store%/store}; echo $store;)" +
                                         ending),
                         {{"TMPDIR", temporary.path()}});

    EXPECT_NE(weft.exit_code(), -1);
    EXPECT_TRUE(contains(weft.output(), "[0] 700\n[0] " + temporary.path() + "/weft-")) << ending;
    EXPECT_TRUE(std::filesystem::is_empty(temporary.path())) << ending;
  }
}

TEST_F(WeftRunWithPipe, EndsAllWhenOneFailsAndNamesIt) {
  LaunchedProgram weft(weft_run(3, R"(
    case $RANK in
      0) exec sleep 1000;;
      1) echo > $A; exec sleep 1000;;
      2) read x < $A; echo $$; echo last words >&2; exit 3;;
    esac)"),
                       environment());

  EXPECT_EQ(weft.exit_code(), 3);
  const std::string pid = lines_of(weft.output()).at(0).substr(4);
  EXPECT_EQ(weft.error(), "[2] last words\nweft: worker 2 (pid " + pid +
                              ") exited with status 3; stopping the others\n");
  EXPECT_TRUE(weft.every_descendant_ends());
}

TEST(WeftRun, NamesTheSignalThatKilledAWorker) {
  LaunchedProgram weft(weft_run(1, "ulimit -c 0; kill -SEGV $$"));

  EXPECT_EQ(weft.exit_code(), 128 + SIGSEGV);
  EXPECT_TRUE(contains(weft.error(), "was killed by SIGSEGV\n"));
}

TEST(WeftRun, KillsAWorkerThatIgnoresTheEnd) {
  LaunchedProgram weft(
      weft_run(2, "trap '' TERM; echo ready; [ $RANK = 0 ] && read x && exit 4; exec sleep 1000",
               {"--grace", "0.1"}));
  ASSERT_TRUE(weft.prints("ready", 2));

  weft.write_input("go\n");

  EXPECT_EQ(weft.exit_code(), 4);
  EXPECT_TRUE(contains(weft.error(), "weft: killing what did not end within 0.1 s: worker 1\n"));
  EXPECT_TRUE(weft.every_descendant_ends());
}

TEST(WeftRun, EndsWhatAFailedWorkerLeftBehind) {
  LaunchedProgram weft(weft_run(1, "trap '' TERM; sleep 1000 & exit 5", {"--grace", "0.1"}));

  EXPECT_EQ(weft.exit_code(), 5);
  EXPECT_TRUE(weft.every_descendant_ends());
}

TEST(WeftRun, DoesNotWaitForWhatASuccessfulWorkerLeftBehind) {
  LaunchedProgram weft(weft_run(1, "sleep 1000 & echo $!; printf unfinished"));

  EXPECT_EQ(weft.exit_code(), 0);
  const auto lines = lines_of(weft.output());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "[0] unfinished");
  EXPECT_EQ(::kill(std::stoi(lines[0].substr(4)), SIGKILL), 0);
}

TEST(WeftRun, LeavesWhenItsReaderLeaves) {
  LaunchedProgram weft(weft_run(2, "exec yes"));
  ASSERT_TRUE(weft.prints("y"));

  weft.close_output();

  EXPECT_EQ(weft.exit_code(), 128 + SIGPIPE);
  EXPECT_TRUE(weft.every_descendant_ends());
}

TEST(WeftRun, EndsThoughNobodyReadsItsOutput) {
  LaunchedProgram weft(weft_run(2, "echo ready; exec yes", {"--grace", "0.1"}));
  ASSERT_TRUE(weft.prints("ready"));

  weft.signal(SIGTERM);

  EXPECT_TRUE(weft.every_descendant_ends());
  EXPECT_EQ(weft.exit_code(), 128 + SIGTERM);
}

TEST(WeftRun, ReportsAProgramThatCannotBeStarted) {
  LaunchedProgram missing({WEFT_TOOL_PATH, "run", "-n", "2", "./programm"});
  LaunchedProgram forbidden({WEFT_TOOL_PATH, "run", "-n", "2", "/etc/passwd"});

  EXPECT_EQ(missing.exit_code(), 127);
  EXPECT_EQ(missing.error(), "weft: cannot start ./programm: No such file or directory\n");
  EXPECT_EQ(forbidden.exit_code(), 126);
  EXPECT_EQ(forbidden.error(), "weft: cannot start /etc/passwd: Permission denied\n");
}

TEST(WeftRun, ExplainsAWrongCommandLine) {
  const std::pair<std::vector<std::string>, std::string> mistakes[] = {
      {{"run", "./program"},
       "weft run: the number of workers is missing: give -n N before the program\n"},
      {{"run", "-n", "0", "./program"}, "weft run: -n: not a number of workers: '0'\n"},
      {{"run", "-n", "two", "./program"}, "weft run: -n: not a number of workers: 'two'\n"},
      {{"run", "-n", "2"}, "weft run: the program to run is missing\n"},
      {{"run", "-n", "2", "--grace", "-1", "./program"},
       "weft run: --grace: not a number of seconds: '-1'\n"},
      {{"run", "-n", "2", "--fast", "./program"},
       "weft run: The following argument was not expected: --fast\n"},
      {{}, "weft: no command given\n"},
  };
  for (auto [command, message] : mistakes) {
    command.insert(command.begin(), WEFT_TOOL_PATH);
    LaunchedProgram weft(command);

    EXPECT_EQ(weft.exit_code(), 2);
    EXPECT_EQ(weft.error().substr(0, message.size()), message);
  }
}

class WeftRunSignals : public testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(WeftRunSignals, ArePassedOnToEveryWorker) {
  const auto [signal, name] = GetParam();
  LaunchedProgram weft(
      weft_run(2, std::string("sleep 1000 & trap 'kill -KILL $!; echo got; exit 0' ") + name +
                      "; echo ready; while :; do wait; done"));
  ASSERT_TRUE(weft.prints("ready", 2));

  weft.signal(signal);

  EXPECT_EQ(weft.exit_code(), 0) << weft.error();
  EXPECT_TRUE(contains(weft.output(), "[0] got\n"));
  EXPECT_TRUE(contains(weft.output(), "[1] got\n"));
  EXPECT_TRUE(weft.every_descendant_ends());
}

INSTANTIATE_TEST_SUITE_P(All, WeftRunSignals,
                         testing::Values(std::pair(SIGINT, "INT"), std::pair(SIGTERM, "TERM"),
                                         std::pair(SIGHUP, "HUP"), std::pair(SIGQUIT, "QUIT"),
                                         std::pair(SIGUSR1, "USR1"), std::pair(SIGUSR2, "USR2")),
                         [](const auto& info) { return info.param.second; });

TEST(WeftRun, KillsAtTheSecondInterrupt) {
  LaunchedProgram weft(
      weft_run(2, "trap 'echo still here' INT; sleep 1000 & echo ready; while :; do wait; done",
               {"--grace", "1000"}));
  ASSERT_TRUE(weft.prints("ready", 2));

  weft.signal(SIGINT);
  ASSERT_TRUE(weft.prints("still here", 2));
  weft.signal(SIGINT);

  EXPECT_EQ(weft.exit_code(), 128 + SIGKILL);
  EXPECT_TRUE(weft.every_descendant_ends());
}

TEST(WeftRun, StopsAndContinuesWithItsWorkers) {
  LaunchedProgram weft(weft_run(1, "echo $$; exec sleep 1000"));
  ASSERT_TRUE(weft.prints("\n"));
  const auto worker_state = [pid = lines_of(weft.output()).at(0).substr(4)] {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string number, name, state;
    file >> number >> name >> state;
    return state;
  };

  weft.signal(SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(weft.pid(), &status, WUNTRACED), weft.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(test::holds_in_time([&] { return worker_state() == "T"; }));
  weft.signal(SIGCONT);
  EXPECT_TRUE(test::holds_in_time([&] { return worker_state() == "S"; }));
  weft.signal(SIGTERM);

  EXPECT_EQ(weft.exit_code(), 128 + SIGTERM);
}

TEST(WeftRun, TakesItsWorkersWithItWhenKilled) {
  const TestDirectory temporary;  // a killed launcher cannot remove what it made
  LaunchedProgram weft(weft_run(3, "echo ready; exec sleep 1000"), {{"TMPDIR", temporary.path()}});
  ASSERT_TRUE(weft.prints("ready", 3));

  weft.signal(SIGKILL);

  EXPECT_EQ(weft.exit_code(), 128 + SIGKILL);
  EXPECT_TRUE(weft.every_descendant_ends());
}

// A group inside a process that was started with unusual signal settings.
TEST(WorkerGroup, GivesWorkersTheSignalSettingsItWasStartedWith) {
  LaunchedProgram group([] {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGUSR1);
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
    ::signal(SIGHUP, SIG_IGN);
    WorkerGroupOptions options;
    options.command = {"grep", {"grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}};
    return WorkerGroup(options).run();
  });

  EXPECT_EQ(group.exit_code(), 0);
  EXPECT_TRUE(contains(group.output(), "[0] SigBlk:\t0000000000000200\n"));
  // Signals 32 and 33 are the C library's; whatever started this test may have left them ignored.
  const std::string ignored = group.output().substr(group.output().rfind('\t') + 1);
  EXPECT_EQ(std::stoull(ignored, nullptr, 16) & 0x7fffffff, 1u) << group.output();
}

TEST(WorkerGroup, RunsWithoutStandardDescriptors) {
  LaunchedProgram group([] {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    WorkerGroupOptions options;
    options.command = {"sh", {"sh", "-c", "cat; echo lost; echo kept >&2"}};
    return WorkerGroup(options).run();
  });

  EXPECT_EQ(group.exit_code(), 0);
  EXPECT_EQ(group.error(), "[0] kept\n");
}

TEST(WorkerGroup, ReturnsControlWithTheCallersSignalsRestored) {
  LaunchedProgram group([] {
    ::signal(SIGTERM, SIG_IGN);
    WorkerGroupOptions options;
    options.command = {"true", {"true"}};
    const int first = WorkerGroup(options).run();
    const int second = WorkerGroup(options).run();
    return first == 0 && second == 0 && ::signal(SIGTERM, SIG_DFL) == SIG_IGN &&
                   ::signal(SIGINT, SIG_DFL) == SIG_DFL
               ? 0
               : 1;
  });

  EXPECT_EQ(group.exit_code(), 0);
}

// This test program itself, as launch() starts it again: main() below leads to run_worker().
LaunchedProgram launch_program(const std::string& part,
                               LaunchedProgram::Environment environment = {}) {
  environment["LAUNCH_TEST_PART"] = part;
  return {{std::filesystem::read_symlink("/proc/self/exe"), "an argument"}, environment};
}

int run_worker(int rank, int world_size) {
  const std::string part = std::getenv("LAUNCH_TEST_PART");
  if (part == "throw" && rank == 1) throw std::out_of_range("too far");
  if (part == "throw int" && rank == 1) throw 7;
  if (part == "status") return rank == 1 ? 6 : 0;
  std::printf("%d of %d\n", rank, world_size);
  std::fprintf(stderr, "done\n");
  return 0;
}

TEST(Launch, RunsEveryRankAndPassesOnTheOutputOfRank0) {
  LaunchedProgram program = launch_program("print");

  EXPECT_EQ(program.exit_code(), 0);
  EXPECT_EQ(sorted_lines_of(program.output()), (Lines{"0 of 2", "[1] 1 of 2"}));
  EXPECT_EQ(sorted_lines_of(program.error()), (Lines{"[0] done", "[1] done"}));
}

TEST(Launch, IsAWorkerWhenStartedAsOne) {
  LaunchedProgram program = launch_program("print", {{"RANK", "4"}, {"WORLD_SIZE", "5"}});

  EXPECT_EQ(program.exit_code(), 0);
  EXPECT_EQ(program.output(), "4 of 5\n");
}

TEST(Launch, ReturnsTheStatusOfTheWorkerThatFailed) {
  EXPECT_EQ(launch_program("status").exit_code(), 6);
}

TEST(Launch, PrintsAnEscapingException) {
  LaunchedProgram program = launch_program("throw");
  LaunchedProgram other = launch_program("throw int");

  EXPECT_EQ(program.exit_code(), 1);
  EXPECT_TRUE(contains(program.error(), "[1] weft: worker 1 failed: std::out_of_range: too far\n"));
  EXPECT_EQ(other.exit_code(), 1);
  EXPECT_TRUE(contains(other.error(), "[1] weft: worker 1 failed: int\n"));
}

TEST(Launch, RefusesAnEnvironmentThatMakesNoSense) {
  LaunchedProgram letters = launch_program("print", {{"RANK", "x"}, {"WORLD_SIZE", "2"}});
  LaunchedProgram outside = launch_program("print", {{"RANK", "2"}, {"WORLD_SIZE", "2"}});

  EXPECT_EQ(letters.exit_code(), 1);
  EXPECT_EQ(letters.error(), "weft: RANK is not a number of a worker: 'x'\n");
  EXPECT_EQ(outside.exit_code(), 1);
  EXPECT_EQ(outside.error(), "weft: RANK 2 is not below WORLD_SIZE 2\n");
}

const test::RegisterProcessPart launched_part("LAUNCH_TEST_PART", [](int argc, char** argv) {
  return launch(argc, argv, 2, run_worker);
});

}  // namespace
}  // namespace weft
