// init_rpc(), shutdown() and the free barrier(): the process's default agent.
// SPDX-License-Identifier: BSD-3-Clause
#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/mutex.h"
#include "base/process_exit.h"
#include "rpc/default_agent.h"
#include "weft/rpc.h"

namespace weft {

namespace {

// Leaked, and the agent before the current one is kept too: a thread that calls while another one
// shuts down gets an error from a stopped agent, never a dangling reference.
struct DefaultAgent {
  base::Mutex mutex;
  std::shared_ptr<Agent> agent WEFT_GUARDED_BY(mutex);
  std::shared_ptr<Agent> retired WEFT_GUARDED_BY(mutex);
  bool joining WEFT_GUARDED_BY(mutex) = false;
  bool hooks_installed WEFT_GUARDED_BY(mutex) = false;
};
DefaultAgent& the() {
  static auto* leaked = new DefaultAgent;
  return *leaked;
}

// For a program that ends without shutdown(): no thread of Weft may run while static objects are
// destroyed.
void stop_at_exit() {
  base::note_exit();
  std::shared_ptr<Agent> agent;
  {
    const base::MutexLock lock(the().mutex);
    agent = the().agent;
  }
  if (agent) agent->shutdown_now();
}

// A forked child has no agent. Its copy of the parent's agent is neither used nor destroyed:
// destroying it would wait for threads that are not in this process.
void abandon_in_child() WEFT_RELEASE(the().mutex) {
  rpc::abandon_default_agent();
  for (auto* each : {&the().agent, &the().retired}) {
    if (*each) new std::shared_ptr<Agent>(std::move(*each));
  }
  the().joining = false;
  the().mutex.unlock();
}

void lock_before_fork() WEFT_ACQUIRE(the().mutex) { the().mutex.lock(); }
void unlock_after_fork() WEFT_RELEASE(the().mutex) { the().mutex.unlock(); }

void install_hooks() WEFT_REQUIRES(the().mutex) {
  if (std::exchange(the().hooks_installed, true)) return;
  std::atexit(stop_at_exit);
  pthread_atfork(lock_before_fork, unlock_after_fork, abandon_in_child);
}

}  // namespace

void init_rpc(const std::string& name, const Options& options) {
  {
    const base::MutexLock lock(the().mutex);
    if (the().agent || the().joining) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("RPC is already initialized in this process; \"{}\" cannot join too", name));
    }
    the().joining = true;
  }
  std::shared_ptr<Agent> agent;
  try {
    // Set the default agent before others know of this worker: functions that they call at once may
    // use it.
    agent = Agent::join(name, options, [](Agent& joined) { rpc::set_default_agent(&joined); });
  } catch (...) {
    rpc::set_default_agent(nullptr);
    const base::MutexLock lock(the().mutex);
    the().joining = false;
    throw;
  }
  const base::MutexLock lock(the().mutex);
  the().joining = false;
  the().agent = agent;
  install_hooks();
}

ShutdownReport shutdown(Shutdown how) {
  std::shared_ptr<Agent> agent;
  {
    const base::MutexLock lock(the().mutex);
    agent = the().agent;
  }
  if (!agent) return {};
  ShutdownReport report;
  if (how == Shutdown::kGraceful) {
    report = agent->shutdown();
  } else {
    agent->shutdown_now();
  }
  base::stay_if_process_exits();
  const base::MutexLock lock(the().mutex);
  if (the().agent == agent) {
    rpc::set_default_agent(nullptr);
    the().retired = std::exchange(the().agent, nullptr);
  }
  return report;
}

WorkerInfo get_worker_info() { return current_agent().info(); }
WorkerInfo get_worker_info(const Destination& worker) { return current_agent().info(worker); }
DebugInfo debug_info() { return current_agent().debug_info(); }

void barrier(const std::vector<std::string>& workers, Timeout timeout) {
  current_agent().barrier(workers, timeout);
}

}  // namespace weft
