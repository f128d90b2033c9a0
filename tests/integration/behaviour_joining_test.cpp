// What users rely on when a group is joined, and what lives beside it in a process.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <weft/rpc.h>

#include "base/temporary_directory.h"
#include "support/free_port.h"
#include "support/scenario.h"

namespace weft::behaviour_joining {

using namespace std::chrono_literals;
using test::eventually;
using test::free_port;
using test::Workers;

int64_t twice(int64_t n) { return 2 * n; }
std::string where() { return get_worker_info().name; }

// The error that `call` throws; fails the scenario if it throws none.
template <typename F>
Error error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  REQUIRE_THAT(!"it did not throw");
  std::abort();
}
template <typename F>
bool fails_with(ErrorCode code, const std::string& text, const F& call) {
  const Error error = error_of(call);
  const bool as_expected =
      error.code() == code && std::string(error.what()).find(text) != std::string::npos;
  if (!as_expected) std::fprintf(stderr, "instead: %s\n", error.what());
  return as_expected;
}

std::string name_of(int rank) { return "worker" + std::to_string(rank); }
int peer_of(int rank, int world_size) { return (rank + 1) % world_size; }

// Everybody calls somebody, by rank and by name.
bool calls_work(int rank, int world_size) {
  const int peer = peer_of(rank, world_size);
  return rpc_sync<twice>(peer, 21) == 42 && rpc_sync<where>(name_of(peer)) == name_of(peer);
}

// --- 8, 9 --------------------------------------------------------------------------------------

SCENARIO(behaviour_init_shutdown_cycles) {
  const auto refused = [] {
    return fails_with(ErrorCode::kNotInitialized, "init_rpc", [] { rpc_sync<twice>(0, 1); }) &&
           fails_with(ErrorCode::kNotInitialized, "init_rpc",
                      [] { rpc_async<twice>("worker0", 1); }) &&
           fails_with(ErrorCode::kNotInitialized, "init_rpc", [] { get_worker_info(); }) &&
           fails_with(ErrorCode::kNotInitialized, "init_rpc", [] { barrier(); });
  };
  REQUIRE_THAT(refused());
  REQUIRE_THAT(shutdown().lost_workers.empty());  // harmless without init_rpc

  std::optional<Future<int64_t>> of_last_cycle;
  for (int cycle = 0; cycle < 4; ++cycle) {
    init_rpc(name_of(rank));
    REQUIRE_THAT(
        fails_with(ErrorCode::kInvalidArgument, "already initialized", [] { init_rpc("again"); }));
    REQUIRE_THAT(calls_work(rank, world_size));
    REQUIRE_THAT(get_worker_info() == (WorkerInfo{name_of(rank), rank}));
    if (of_last_cycle) REQUIRE_THAT(of_last_cycle->wait() == 2);
    of_last_cycle = rpc_async<twice>(peer_of(rank, world_size), 1);
    REQUIRE_THAT(shutdown().lost_workers.empty());
    REQUIRE_THAT(refused());
    REQUIRE_THAT(shutdown().lost_workers.empty());
  }
  return 0;
}

TEST(Behaviour09_InitTwice, CyclesInOneProcessAndDoubleInitIsRefused) {
  Workers workers("behaviour_init_shutdown_cycles", 2);
  EXPECT_TRUE(workers.all_succeed());
}

TEST(Behaviour08_RpcAfterShutdown, FreeFunctionsAreNotInitialized) {
  Workers workers("behaviour_init_shutdown_cycles", 1);
  EXPECT_TRUE(workers.all_succeed());
}

// Whoever has joined calls the others at once; who is not ready yet lets the call wait.
SCENARIO(behaviour_called_at_once) {
  if (rank == 1) {
    const auto slow_to_open = [](Agent&) { std::this_thread::sleep_for(50ms); };
    const auto agent = Agent::join(name_of(rank), {}, slow_to_open);
    agent->shutdown();
    return 0;
  }
  init_rpc(name_of(rank));
  REQUIRE_THAT(rpc_sync<where>(name_of(1)) == name_of(1));
  shutdown();
  return 0;
}

TEST(Behaviour09_InitTwice, ACallBeforeInitReturnedFindsAnInitializedWorker) {
  Workers workers("behaviour_called_at_once", 2);
  EXPECT_TRUE(workers.all_succeed());
}

SCENARIO(behaviour_names) {
  for (const char* name : {"", "a b", "a/b", "a.b", "caf\xc3\xa9", "a\nb", "*"}) {
    REQUIRE_THAT(fails_with(ErrorCode::kInvalidArgument, "name must", [&] { init_rpc(name); }));
  }
  REQUIRE_THAT(fails_with(ErrorCode::kInvalidArgument, "shorter than 128",
                          [] { init_rpc(std::string(128, 'x')); }));
  // Everybody learns that two of them have one name,
  const std::string taken = rank == 2 ? "other" : "same";
  REQUIRE_THAT(fails_with(ErrorCode::kInvalidArgument, "not unique", [&] { init_rpc(taken); }));
  const Error all_same = error_of([] { init_rpc("same"); });
  REQUIRE_THAT(all_same.code() == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(all_same.message().find("ranks 0 and 1 are both called \"same\"") !=
               std::string::npos);
  // and the next attempt works, with the longest and oddest name there may be.
  const std::string longest = std::string(124, 'x') + ":_-";
  init_rpc(rank == 0 ? longest : name_of(rank));
  REQUIRE_THAT(rpc_sync<where>(longest) == longest);
  shutdown();
  return 0;
}

TEST(Behaviour09_InitTwice, DuplicateNamesOnAllRanksAndInvalidNames) {
  Workers workers("behaviour_names", 3);
  EXPECT_TRUE(workers.all_succeed());
}

SCENARIO(behaviour_rendezvous) {
  const char* rendezvous = std::getenv("BEHAVIOUR_FILE");
  for (const std::string& method :
       {std::string("env://"), std::string(std::getenv("BEHAVIOUR_TCP")), std::string(rendezvous),
        std::string(), std::string(std::getenv("BEHAVIOUR_TCP"))}) {
    Options options;
    options.init_method = method;
    init_rpc(name_of(rank), options);
    REQUIRE_THAT(calls_work(rank, world_size));
    REQUIRE_THAT(shutdown().lost_workers.empty());
  }
  return 0;
}

TEST(Behaviour09_InitTwice, ByEnvironmentTcpAndFile) {
  const std::string directory =
      testing::TempDir() + "behaviour_rendezvous_" + std::to_string(getpid());
  Workers workers("behaviour_rendezvous", 2,
                  {{"WEFT_RENDEZVOUS", ""},  // so that the default is env://
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(free_port())},
                   {"BEHAVIOUR_TCP", "tcp://127.0.0.1:" + std::to_string(free_port())},
                   {"BEHAVIOUR_FILE", "file://" + directory}});
  EXPECT_TRUE(workers.all_succeed());
  unlink(directory.c_str());
}

SCENARIO(behaviour_joins) {
  init_rpc(name_of(rank));
  REQUIRE_THAT(calls_work(rank, world_size));
  shutdown();
  return 0;
}

SCENARIO(behaviour_second_of_two_joins_alone) {
  Options options;
  options.rank = 1;
  options.world_size = 2;
  options.init_timeout = 300ms;
  REQUIRE_THAT(fails_with(ErrorCode::kUnavailable, "missing ranks: 0",
                          [&] { init_rpc(name_of(1), options); }));
  return 0;
}

SCENARIO(behaviour_second_of_three_joins_alone) {
  Options options;
  options.rank = 1;
  options.world_size = 3;
  init_rpc(name_of(1), options);
  return 0;
}

SCENARIO(behaviour_second_joins_when_released) {
  if (rank == 1) test::wait_for_test();
  return behaviour_joins(rank, world_size);
}

class LeftoverFile {
 public:
  const std::string& path() const { return path_; }
  Workers::Environment environment() const { return {{"WEFT_RENDEZVOUS", "file://" + path_}}; }
  bool has_a_record() const {
    struct stat found = {};
    return stat(path_.c_str(), &found) == 0 && found.st_size > 50;
  }
  bool was_written_since(const timespec& time) const {
    struct stat found = {};
    return stat(path_.c_str(), &found) == 0 &&
           std::tie(found.st_mtim.tv_sec, found.st_mtim.tv_nsec) >
               std::tie(time.tv_sec, time.tv_nsec);
  }
  timespec last_written() const {
    struct stat found = {};
    stat(path_.c_str(), &found);
    return found.st_mtim;
  }

 private:
  base::TemporaryDirectory directory_{"weft-test"};
  std::string path_ = directory_.path() + "/store";
};

TEST(Behaviour09_InitTwice, MembersOfAnEarlierRunAreNotMetAgain) {
  const LeftoverFile file;
  Workers earlier("behaviour_joins", 2, file.environment());
  ASSERT_TRUE(earlier.all_succeed());
  ASSERT_TRUE(file.has_a_record());

  Workers later("behaviour_second_of_two_joins_alone", 1, file.environment());

  EXPECT_TRUE(later.all_succeed());
}

TEST(Behaviour09_InitTwice, ARunThatWasKilledWhileItJoinedDoesNotHinderTheNext) {
  const LeftoverFile file;
  Workers killed("behaviour_second_of_three_joins_alone", 1, file.environment());
  ASSERT_TRUE(eventually([&] { return file.has_a_record(); }));
  killed.signal(0, SIGKILL);
  ASSERT_EQ(killed.wait(0), 128 + SIGKILL);
  const timespec left = file.last_written();

  Workers next("behaviour_second_joins_when_released", 2, file.environment());
  ASSERT_TRUE(eventually([&] { return file.was_written_since(left) && file.has_a_record(); }));
  next.release(1);

  EXPECT_TRUE(next.all_succeed());
}

// --- 10 ----------------------------------------------------------------------------------------

SCENARIO(behaviour_alone) {
  init_rpc("alone");
  REQUIRE_THAT(rpc_sync<twice>("alone", 2) == 4);
  REQUIRE_THAT(rpc_async<twice>(0, 2).wait() == 4);
  barrier();
  REQUIRE_THAT(all_gather(7).at("alone") == 7);
  rpc_async<twice>(0, 1);
  REQUIRE_THAT(shutdown().lost_workers.empty());

  // What an invitation may be wrong about.
  const auto refused = [](ErrorCode code, const std::string& text, Options options) {
    return fails_with(code, text, [&] { init_rpc("alone", options); });
  };
  Options options;
  options.init_method = "http://here";
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "http://here", options));
  options.init_method = "tcp://127.0.0.1";
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "tcp://host:port", options));
  options.init_method = "tcp://127.0.0.1:99999";
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "99999", options));
  unsetenv("MASTER_ADDR");
  options.init_method = "env://";
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "MASTER_ADDR", options));
  options = {};
  options.rank = 5;
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "rank 5 in a group of 1", options));
  unsetenv("RANK");
  REQUIRE_THAT(refused(ErrorCode::kInvalidArgument, "RANK", {}));
  // Members that do not come are named, in time.
  options.rank = 1;
  options.world_size = 3;
  options.init_timeout = 300ms;
  options.init_method = std::getenv("WEFT_RENDEZVOUS") + std::string("2");
  REQUIRE_THAT(refused(ErrorCode::kUnavailable, "missing ranks: 0, 2", options));
  return 0;
}

TEST(Behaviour10_WorldOfOne, CallsItselfAndMeetsItself) {
  Workers workers("behaviour_alone", 1);
  EXPECT_TRUE(workers.all_succeed());
}

// --- 11 ----------------------------------------------------------------------------------------

std::string exchanged(c10d::Store& store, const std::string& key, int rank, int world_size) {
  const std::string mine = "from " + std::to_string(rank);
  store.set(key + std::to_string(rank), std::vector<uint8_t>(mine.begin(), mine.end()));
  const std::vector<uint8_t> theirs = store.get(key + std::to_string(peer_of(rank, world_size)));
  return std::string(theirs.begin(), theirs.end());
}

c10::intrusive_ptr<c10d::Store> store_at(int port, int rank) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.multiTenant = true;
  options.timeout = 20s;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

SCENARIO(behaviour_beside_stores) {
  const std::string expected = "from " + std::to_string(peer_of(rank, world_size));
  // A store of the program's own, at the very port that env:// uses, before
  auto before = store_at(std::atoi(std::getenv("MASTER_PORT")), rank);
  REQUIRE_THAT(exchanged(*before, "a", rank, world_size) == expected);
  init_rpc(name_of(rank));
  REQUIRE_THAT(calls_work(rank, world_size));
  // and others after.
  auto after = store_at(std::atoi(std::getenv("BEHAVIOUR_PORT")), rank);
  auto file = c10::make_intrusive<c10d::FileStore>(std::getenv("BEHAVIOUR_FILE"), world_size);
  for (int round = 0; round < 3; ++round) {
    const std::string key = "b" + std::to_string(round);
    REQUIRE_THAT(exchanged(*before, key, rank, world_size) == expected);
    REQUIRE_THAT(exchanged(*after, key, rank, world_size) == expected);
    REQUIRE_THAT(exchanged(*file, key, rank, world_size) == expected);
    REQUIRE_THAT(calls_work(rank, world_size));
  }
  shutdown();
  REQUIRE_THAT(exchanged(*before, "c", rank, world_size) == expected);
  init_rpc(name_of(rank));
  REQUIRE_THAT(calls_work(rank, world_size));
  shutdown();
  REQUIRE_THAT(exchanged(*after, "d", rank, world_size) == expected);
  // Rank 0 serves the stores; it may not end while the other one reads.
  REQUIRE_THAT(exchanged(*file, "e", rank, world_size) == expected);
  return 0;
}

Workers::Environment stores_environment(const std::string& file) {
  return {{"WEFT_RENDEZVOUS", "env://"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(free_port())},
          {"BEHAVIOUR_PORT", std::to_string(free_port())},
          {"BEHAVIOUR_FILE", file}};
}

TEST(Behaviour11_BesideOtherRendezvous, StoresBeforeAndAfterInit) {
  const std::string file = testing::TempDir() + "behaviour_stores_" + std::to_string(getpid());
  Workers workers("behaviour_beside_stores", 2, stores_environment(file));
  EXPECT_TRUE(workers.all_succeed());
  unlink(file.c_str());
}

// --- 20 ----------------------------------------------------------------------------------------

std::atomic<bool> rendezvous_done{false};
std::atomic<bool> slow_began{false};
bool slow() {
  slow_began = true;
  return eventually([] { return rendezvous_done.load(); });
}

// Both have a slow call of the other in hand while their main threads wait for each other in a
// store.
SCENARIO(behaviour_slow_call_during_rendezvous) {
  init_rpc(name_of(rank));
  const Future<bool> call = rpc_async<slow>(peer_of(rank, world_size));
  REQUIRE_THAT(eventually([] { return slow_began.load(); }));

  auto store = store_at(std::atoi(std::getenv("BEHAVIOUR_PORT")), rank);
  for (int round = 0; round < 20; ++round) {
    exchanged(*store, "k" + std::to_string(round), rank, world_size);
    REQUIRE_THAT(rpc_sync<twice>(peer_of(rank, world_size), round) == 2 * round);
  }
  REQUIRE_THAT(!call.ready());
  REQUIRE_THAT(!exchanged(*store, "all done ", rank, world_size).empty());
  rendezvous_done = true;

  REQUIRE_THAT(call.wait());
  shutdown();
  return 0;
}

TEST(Behaviour20_NoDeadlock, SlowCallWhileTheMainThreadMeetsElsewhere) {
  Workers workers("behaviour_slow_call_during_rendezvous", 2, stores_environment(""));
  EXPECT_TRUE(workers.all_succeed());
}

}  // namespace weft::behaviour_joining
