// Strangers on a worker's port, and a worker that has no descriptors left for anybody.
// SPDX-License-Identifier: BSD-3-Clause
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "fault_scene.h"
#include "wire/frame.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRoundTrip = 200ms;
constexpr size_t kMiB = size_t{1} << 20;

// A connection of somebody who is no worker.
class Stranger {
 public:
  explicit Stranger(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Stranger() { close(socket_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  bool connected() const { return connected_; }
  void say(const std::string& bytes) {
    (void)!send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Whether the worker closes, whatever it says before.
  bool is_turned_away(milliseconds within) {
    char buffer[4096];
    pollfd polled{socket_, POLLIN, 0};
    while (poll(&polled, 1, static_cast<int>((within * kSlowness).count())) == 1) {
      if (recv(socket_, buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
  }
  void leave_by_reset() {
    const linger at_once{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

 private:
  int socket_;
  bool connected_;
};

std::string as_text(const wire::FrameHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

// A hello that promises more than a hello may have, in every field that says how much follows.
std::string hello_of_bad_length(uint32_t variant) {
  wire::FrameHeader header{wire::FrameKind::kHello};
  header.id = wire::kHelloMagic;
  header.body_bytes = 64;
  switch (variant % 4) {
    case 0:
      header.body_bytes = 0xffff'ffff;
      break;
    case 1:
      header.body_bytes = 16 * 1024 + 1;
      break;
    case 2:
      header.bulk_bytes = ~uint64_t{0};
      break;
    default:
      header.rows = 0xffff;
      break;
  }
  return as_text(header) + std::string(100, 'x');
}

std::string random_bytes(std::mt19937& random) {
  std::string bytes(24 + random() % 4096, '\0');
  std::generate(bytes.begin(), bytes.end(), [&random] { return static_cast<char>(random()); });
  return bytes;
}

int port_of(Workers& workers, int rank) {
  std::istringstream words(workers.output(rank));
  for (std::string word; words >> word;) {
    if (word == "port") words >> word;
    if (!word.empty() && std::isdigit(word[0])) return std::stoi(word);
  }
  return -1;
}

void tell_port() {
  std::printf("port %d\n", listening_port());
  std::fflush(stdout);
  tell_test("listens");
}

// Calls without a pause until the test says enough; each must be answered in time.
void call_until_released() {
  std::atomic<bool> enough{false};
  std::thread calling([&enough] {
    std::chrono::nanoseconds longest{};
    int64_t calls = 0;
    for (; !enough; ++calls) {
      const Ending ending = ending_of([calls] { rpc_sync<echo>("worker1", calls); });
      require_success(ending, kRoundTrip);
      longest = std::max(longest, ending.took);
    }
    std::printf("%ld calls meanwhile, the longest took %.1f ms\n", calls,
                1e-6 * static_cast<double>(longest.count()));
  });
  tell_test("calls");
  wait_for_test();
  enough = true;
  calling.join();
}

void relay_to_worker1() { rpc_sync<echo>("worker1", 1); }
ErrorCode outcome_of_echo_on_worker2() {
  const Ending ending = ending_of([] { rpc_sync<echo>("worker2", 1); });
  return ending.error ? ending.error->code() : ErrorCode{};
}

void require_timeout_of_echo_on_worker1() {
  require_ending(
      ending_of([] {
        rpc_sync<echo>({"worker1", 500ms}, 1);
      }),
      {.code = ErrorCode::kTimeout, .may_have_run = true, .after = 500ms, .within = 700ms});
}

SCENARIO(faults_strangers_on_the_port) {
  init_rpc(worker(rank));
  if (rank == 1) tell_port();
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  call_until_released();

  // Somebody new gets in, and nobody was taken for a member.
  rpc_sync<relay_to_worker1>("worker2");
  return end_scene();
}

class FaultsOnThePort : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(workers_.heard(1, "listens"));
    ASSERT_TRUE(workers_.heard(0, "calls"));
    port_ = port_of(workers_, 1);
    ASSERT_GT(port_, 0);
  }

  // `visit` a thousand times. The first hundred make the worker take what memory it needs for that.
  template <typename Visit>
  void visit_a_thousand_times(const Visit& visit) {
    for (uint32_t i = 0; i < 100; ++i) visit(i);
    const size_t before = resident_bytes(workers_.pid(1));
    const auto start = Clock::now();
    for (uint32_t i = 0; i < 1000; ++i) {
      visit(i);
      if (HasFatalFailure()) return;
    }
    const size_t after = resident_bytes(workers_.pid(1));
    std::cout << std::chrono::duration<double>(Clock::now() - start).count() << " s, "
              << (static_cast<double>(after) - static_cast<double>(before)) / 1024 << " KiB more\n";
    EXPECT_TRUE(!kMemoryShows || after < before + 4 * kMiB);
    EXPECT_LE(late_, 10) << "of 1,100; some may be, on a host with more to do than processors";
  }
  void expect_turned_away(const std::string& bytes) {
    Stranger stranger(port_);
    ASSERT_TRUE(stranger.connected());
    stranger.say(bytes);
    if (stranger.is_turned_away(100ms)) return;
    ++late_;
    ASSERT_TRUE(stranger.is_turned_away(2s));
  }
  void expect_served_on() {
    workers_.release(0);
    EXPECT_TRUE(scene_succeeds(workers_));
    std::cout << workers_.output(0) << workers_.output(1);
    const std::string log = workers_.output(1);
    EXPECT_NE(log.find("turned away"), std::string::npos);
    EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 50) << "the log is flooded";
  }

  Workers workers_{"faults_strangers_on_the_port", 3};
  int port_ = -1;
  int late_ = 0;
};

TEST_F(FaultsOnThePort, HttpIsTurnedAway) {
  visit_a_thousand_times([this](uint32_t) {
    expect_turned_away("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\n\r\n");
  });
  expect_served_on();
}

TEST_F(FaultsOnThePort, RandomBytesAreTurnedAway) {
  std::mt19937 random(1);
  visit_a_thousand_times([&](uint32_t) { expect_turned_away(random_bytes(random)); });
  expect_served_on();
}

TEST_F(FaultsOnThePort, BadLengthsAreTurnedAway) {
  visit_a_thousand_times([this](uint32_t i) { expect_turned_away(hello_of_bad_length(i)); });
  expect_served_on();
}

TEST_F(FaultsOnThePort, ConnectAndCloseIsIgnored) {
  visit_a_thousand_times([this](uint32_t i) {
    Stranger stranger(port_);
    ASSERT_TRUE(stranger.connected());
    if (i % 3 == 1) stranger.leave_by_reset();
    if (i % 3 == 2) stranger.say("\1");
  });
  expect_served_on();
}

TEST_F(FaultsOnThePort, SilentStrangersMakeRoomForMembers) {
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Stranger>(port_));
  EXPECT_TRUE(silent.front()->is_turned_away(100ms));
  expect_served_on();
}

constexpr rlim_t kDescriptors = 64;

SCENARIO(faults_descriptor_limit) {
  if (rank == 1) {
    const rlimit limit{kDescriptors, kDescriptors};
    REQUIRE_THAT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  init_rpc(worker(rank));
  if (rank == 1) tell_port();
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  rpc_sync<echo>("worker2", 1);
  call_until_released();

  // A worker without descriptors says so when it is to connect itself, and goes on.
  const ErrorCode code = rpc_sync<outcome_of_echo_on_worker2>("worker1");
  REQUIRE_THAT(code == ErrorCode::kUnavailable);
  // The limit is that of the inner call alone: with the outer one's it would be open who notices
  // first.
  require_success(ending_of([] { rpc_sync<require_timeout_of_echo_on_worker1>("worker2"); }),
                  700ms);
  tell_test("nobody gets in");
  wait_for_test();  // the descriptors are back

  require_success(ending_of([] { rpc_sync<relay_to_worker1>("worker2"); }), 1s);
  REQUIRE_THAT(rpc_sync<outcome_of_echo_on_worker2>("worker1") == ErrorCode{});
  return end_scene();
}

TEST(FaultsOfDescriptors, ExhaustionPausesAcceptingAndNothingElse) {
  Workers workers("faults_descriptor_limit", 3);
  ASSERT_TRUE(workers.heard(1, "listens"));
  ASSERT_TRUE(workers.heard(0, "calls"));
  const int port = port_of(workers, 1);

  std::vector<std::unique_ptr<Stranger>> strangers;
  for (rlim_t i = 0; i < kDescriptors; ++i) strangers.push_back(std::make_unique<Stranger>(port));
  EXPECT_TRUE(
      eventually([&] { return workers.output(1).find("cannot accept") != std::string::npos; }, 5s));
  workers.release(0);
  ASSERT_TRUE(workers.heard(0, "nobody gets in"));
  strangers.clear();
  workers.release(0);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0) << workers.output(1);
}

}  // namespace
}  // namespace weft::test
