// SPDX-License-Identifier: BSD-3-Clause
#include "support/pair.h"

#include <stdexcept>

#include "support/torch_rpc.h"

namespace bench {
namespace {

ChildOptions weft_worker(const std::string& role, int rank, const std::string& rendezvous,
                         const std::string& spin, WorkerPair::Way way, std::optional<int> cpu) {
  using Way = WorkerPair::Way;
  return {role_command(role, {spin, way == Way::kMemory ? "memory" : ""}),
          {{"RANK", std::to_string(rank)},
           {"WORLD_SIZE", "2"},
           {"WEFT_TRANSPORT", way == Way::kTcp ? "tcp" : "nearest"},
           {"WEFT_RENDEZVOUS", "file://" + rendezvous}},
          cpu};
}

ChildOptions python_worker(const std::string& script, int rank, const std::string& rendezvous,
                           const std::vector<std::string>& arguments) {
  std::vector<std::string> command{python(), script, std::to_string(rank), "file://" + rendezvous};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return {command, {{"GLOG_minloglevel", "2"}}, {}};
}

}  // namespace

AnchorPair::AnchorPair(const std::string& server_role, const std::string& caller_role,
                       std::optional<int> cpu)
    : server_({role_command(server_role, {}), {}, cpu}),
      caller_({role_command(caller_role, {server_.read_line()}), {}, cpu}) {}

WorkerPair WorkerPair::weft(const std::string& spin, Way way, std::optional<int> cpu) {
  WorkerPair pair;
  const std::string rendezvous = pair.directory_->path() + "/rendezvous";
  pair.callee_ = std::make_unique<Child>(weft_worker("weft_callee", 1, rendezvous, spin, way, cpu));
  pair.caller_ = std::make_unique<Child>(weft_worker("weft_caller", 0, rendezvous, spin, way, cpu));
  pair.wait_until_ready();
  return pair;
}

WorkerPair WorkerPair::torch(const std::string& scripts, const std::string& channel) {
  return python(scripts + "/torch_rpc_peer.py", {channel});
}

WorkerPair WorkerPair::torch_ddp(const std::string& scripts) {
  return python(scripts + "/torch_ddp.py", {});
}

WorkerPair WorkerPair::python(const std::string& script,
                              const std::vector<std::string>& arguments) {
  WorkerPair pair;
  const std::string rendezvous = pair.directory_->path() + "/rendezvous";
  pair.callee_ = std::make_unique<Child>(python_worker(script, 1, rendezvous, arguments));
  pair.caller_ = std::make_unique<Child>(python_worker(script, 0, rendezvous, arguments));
  pair.wait_until_ready();
  return pair;
}

void WorkerPair::freeze() {
  callee_->freeze();
  caller_->freeze();
}

void WorkerPair::thaw() {
  callee_->thaw();
  caller_->thaw();
}

// A graceful shutdown waits for the other worker: both are told before either is joined.
WorkerPair::~WorkerPair() {
  if (callee_) callee_->close_input();
  if (caller_) caller_->close_input();
}

void WorkerPair::wait_until_ready() {
  for (Child* child : {callee_.get(), caller_.get()}) {
    const std::string line = child->read_line();
    if (line != "ready") throw std::runtime_error("worker said '" + line + "' instead of 'ready'");
  }
}

Measurement asking(std::optional<WorkerPair>& workers, const std::string& what, size_t count) {
  if (!workers) return nullptr;
  return [&workers, what, count] { return workers->caller().measure(what, count); };
}

}  // namespace bench
