// A large transfer over a slow link: references, heartbeats and cancels are not held up by it.
//
// The workers run in a network of their own whose loopback device is slowed down by tc; that needs
// root. WEFT_SLOW_LINK_MIB sets the size of the transfer, WEFT_SLOW_LINK_RATE the speed.
// SPDX-License-Identifier: BSD-3-Clause
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fault_scene.h"
#include "rpc/own_call.h"
#include "rpc/reserved_functions.h"
#include "weft/rref.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;  // one for all processes of a host

int64_t microseconds_now() {
  return Clock::now().time_since_epoch() / std::chrono::microseconds(1);
}

struct Kept {
  int64_t value() const { return 42; }
};

std::atomic<int64_t> cancelled_at{0};
std::atomic<bool> waiting{false};
std::atomic<bool> bulk_arrived{false};
std::atomic<bool> cancelled_before_bulk{false};

void wait_for_cancel() {
  waiting = true;
  eventually([] { return current_call::cancelled(); }, 120s);
  cancelled_at = microseconds_now();
  cancelled_before_bulk = !bulk_arrived;
}
bool is_waiting() { return waiting; }
std::pair<int64_t, bool> cancellation() { return {cancelled_at, cancelled_before_bulk}; }
int64_t take(at::Tensor tensor) {
  bulk_arrived = true;
  return tensor.numel();
}

int64_t transfer_bytes() {
  const char* asked = std::getenv("WEFT_SLOW_LINK_MIB");
  return (asked ? std::atoll(asked) : 40) << 20;
}

Options short_of_patience() {
  Options options;
  options.heartbeat_interval = 200ms;
  options.suspect_after = 1s;
  options.dead_after = 3s;
  options.rref_lease = 2s;
  options.default_timeout = 300s;
  options.window_bytes = size_t{1} << 40;  // the transfer has company
  options.transport = Options::Transport::kTcp;
  return options;
}

SCENARIO(faults_bulk_on_a_slow_link) {
  init_rpc(worker(rank), short_of_patience());
  if (rank == 1) return serve();
  const auto kept = remote<Kept>(1);
  REQUIRE_THAT(kept.rpc_sync<&Kept::value>() == 42);
  const Future<void> doomed = rpc_async<wait_for_cancel>({1, 0s});
  REQUIRE_THAT(eventually([] { return rpc_sync<is_waiting>(1); }));

  const at::Tensor bulk = at::zeros({transfer_bytes()}, at::kByte);
  const auto began = Clock::now();
  const Future<int64_t> transfer = rpc_async<take>({1, 0s}, bulk);
  rpc::AgentCore& agent = *detail::AgentAccess::core(current_agent());
  Clock::duration slowest{0};
  int64_t cancelled_here = 0;
  while (!transfer.wait_for(50ms)) {
    const auto asked = Clock::now();
    rpc::own_call<rpc::sys_probe>(agent, 1, 0s).wait();
    if (!transfer.ready()) slowest = std::max(slowest, Clock::now() - asked);
    if (cancelled_here == 0 && Clock::now() - began > 1s) {
      cancelled_here = microseconds_now();
      doomed.cancel();
    }
  }

  REQUIRE_THAT(transfer.wait() == transfer_bytes());
  const auto [cancelled_there, before_bulk] = rpc_sync<cancellation>(1);
  std::printf("%lld MiB in %.1f s; slowest probe %.0f ms; cancelled after %.0f ms\n",
              static_cast<long long>(transfer_bytes() >> 20),
              std::chrono::duration<double>(Clock::now() - began).count(),
              std::chrono::duration<double>(slowest).count() * 1e3,
              static_cast<double>(cancelled_there - cancelled_here) * 1e-3);
  REQUIRE_THAT(cancelled_here != 0 && before_bulk);
  // Neither the lease nor the heartbeat, both shorter than the transfer, were held up.
  REQUIRE_THAT(kept.rpc_sync<&Kept::value>() == 42);
  REQUIRE_THAT(debug_info().peers.at(0).connects == 1);
  return end_scene();
}

bool enter_slow_network() {
  const char* asked = std::getenv("WEFT_SLOW_LINK_RATE");
  const std::string slow_down =
      std::string("tc qdisc add dev lo root tbf burst 64kb latency 50ms rate ") +
      (asked ? asked : "100mbit");
  return std::system("ip -V && tc -V") == 0 && ::unshare(CLONE_NEWNET) == 0 &&
         std::system("ip link set lo mtu 1500 up") == 0 && std::system(slow_down.c_str()) == 0;
}

TEST(FaultsOfSlowLinks, ABulkTransferHoldsUpNeitherLeasesNorHeartbeatsNorCancels) {
  if (!enter_slow_network()) GTEST_SKIP() << "needs root, ip and tc";
  Workers workers("faults_bulk_on_a_slow_link", 2);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test
