// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/runtime.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "arena/arena.h"

namespace weft::rpc {

namespace {

size_t usable_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return static_cast<size_t>(CPU_COUNT(&cpus));
  return std::max(2u, std::thread::hardware_concurrency());  // more than the set has room for
}

constexpr size_t kLeastHandlerThreads = 16;

size_t handler_threads_of(const Options& options, size_t cpus) {
  if (options.handler_threads > 0) return options.handler_threads;
  const size_t usual = std::max(cpus, kLeastHandlerThreads);
  return std::max<size_t>(1, std::min(usual, options.max_handler_threads - 2));
}

size_t connections_of(const Options& options, size_t cpus) {
  const size_t wanted = options.connections_per_peer > 0 ? options.connections_per_peer : cpus / 2;
  return std::clamp<size_t>(wanted, 1, Runtime::kMostConnections);
}

}  // namespace

Runtime::Runtime(Group the_group, Options the_options, std::shared_ptr<base::Clock> the_clock,
                 std::unique_ptr<transport::Transport> the_transport)
    : group(std::move(the_group)),
      options(std::move(the_options)),
      cpus(usable_cpus()),
      handler_threads(handler_threads_of(options, cpus)),
      connections(connections_of(options, cpus)),
      // Spinning where the peer needs the same CPU only keeps it from answering.
      spin(cpus > 1 ? options.spin : base::Duration(0)),
      clock(std::move(the_clock)),
      transport(std::move(the_transport)),
      pool(std::make_shared<wire::ReceivePool>(options.receive_pool_bytes)),
      default_timeout(options.default_timeout.count()),
      io(clock) {
  if (options.shared_memory_bytes) arena::Arena::allow(*options.shared_memory_bytes);
}

}  // namespace weft::rpc
