// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/runtime.h"

#include <sched.h>

#include <utility>

namespace weft::rpc {

namespace {

// Spinning where the peer needs the same CPU only keeps it from answering.
base::Duration useful_spin(base::Duration wanted) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2) {
    return base::Duration(0);
  }
  return wanted;
}

}  // namespace

Runtime::Runtime(Group the_group, Options the_options, std::shared_ptr<base::Clock> the_clock,
                 std::unique_ptr<transport::Transport> the_transport)
    : group(std::move(the_group)),
      options(std::move(the_options)),
      spin(useful_spin(options.spin)),
      clock(std::move(the_clock)),
      transport(std::move(the_transport)),
      pool(std::make_shared<wire::ReceivePool>(options.receive_pool_bytes)),
      default_timeout(options.default_timeout.count()),
      io(clock) {}

}  // namespace weft::rpc
