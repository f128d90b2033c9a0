// The state that all parts of one agent use: its identity, its options, its loops, its counters.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crew.h"
#include "base/fork.h"
#include "base/pulse.h"
#include "observe/counter.h"
#include "observe/sharded_counter.h"
#include "rendezvous/group.h"
#include "rpc/group/liveness.h"
#include "rpc/io/io_loop.h"
#include "rpc/io/tick_list.h"
#include "transport/connection.h"
#include "weft/options.h"
#include "weft/worker_info.h"
#include "wire/receive_pool.h"

namespace weft::rpc {

using rendezvous::Group;
using rendezvous::Member;

struct AgentCounters {
  observe::InProgress outstanding;  // user calls made by this worker, until they are settled
  observe::InProgress serving;  // user calls that arrived here, some to be refused, until answered
  observe::Counter late_replies;
  observe::Counter bad_connections;
  observe::Counter cancelled_unstarted;
  observe::Counter timeouts;
};

class AgentCore;

struct Runtime : std::enable_shared_from_this<Runtime> {
  static constexpr size_t kMostConnections = 8;

  Runtime(Group the_group, Options the_options, std::shared_ptr<base::Clock> the_clock,
          std::unique_ptr<transport::Transport> the_transport);

  const std::string& name() const {
    return group.members[static_cast<size_t>(group.self)].info.name;
  }
  const Member& self() const { return group.members[static_cast<size_t>(group.self)]; }

  /// Whether this process was forked from the one whose agent this is.
  bool is_forked_copy() const { return fork_depth != base::fork_depth(); }

  const uint32_t fork_depth = base::fork_depth();
  const Group group;
  const Options options;
  const size_t cpus;  // that this process may use
  const size_t handler_threads;
  const size_t connections;   // to one peer
  const base::Duration spin;  // options.spin, or zero where spinning cannot help
  const std::shared_ptr<base::Clock> clock;
  const std::unique_ptr<transport::Transport> transport;
  const std::shared_ptr<wire::ReceivePool> pool;
  std::atomic<Timeout::rep> default_timeout;
  AgentCounters counters;
  std::weak_ptr<AgentCore> agent;
  base::Pulse pulse;
  TickList ticking;
  IoLoop io;
  Liveness liveness{*this};
};

/// As long as it lives, a call of the user's counts as outstanding whose outcome is known to its
/// link and not yet to the user.
class Outstanding {
 public:
  explicit Outstanding(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {
    runtime_->counters.outstanding.begin();
  }
  ~Outstanding() { runtime_->counters.outstanding.end(); }
  Outstanding(const Outstanding&) = delete;
  Outstanding& operator=(const Outstanding&) = delete;

 private:
  const std::shared_ptr<Runtime> runtime_;
};

}  // namespace weft::rpc
