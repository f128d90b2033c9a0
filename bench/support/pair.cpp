// SPDX-License-Identifier: BSD-3-Clause
#include "support/pair.h"

#include <stdlib.h>

#include <stdexcept>
#include <system_error>

#include "support/torch_rpc.h"

namespace bench {
namespace {

ChildOptions weft_worker(const std::string& role, int rank, const std::string& rendezvous,
                         const std::string& spin, std::optional<int> cpu) {
  return {role_command(role, {spin}),
          {{"RANK", std::to_string(rank)},
           {"WORLD_SIZE", "2"},
           {"WEFT_RENDEZVOUS", "file://" + rendezvous}},
          cpu};
}

ChildOptions torch_worker(const std::string& scripts, int rank, const std::string& rendezvous,
                          const std::string& channel) {
  return {{kPython, scripts + "/torch_rpc_peer.py", std::to_string(rank), "file://" + rendezvous,
           channel},
          {{"GLOG_minloglevel", "2"}},
          {}};
}

}  // namespace

AnchorPair::AnchorPair(const std::string& server_role, const std::string& caller_role,
                       std::optional<int> cpu)
    : server_({role_command(server_role, {}), {}, cpu}),
      caller_({role_command(caller_role, {server_.read_line()}), {}, cpu}) {}

ScratchDirectory::ScratchDirectory() {
  std::string name = std::filesystem::temp_directory_path() / "weft-bench-XXXXXX";
  if (mkdtemp(name.data()) == nullptr)
    throw std::system_error(errno, std::generic_category(), "mkdtemp");
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

WorkerPair WorkerPair::weft(const std::string& spin, std::optional<int> cpu) {
  WorkerPair pair;
  const std::string rendezvous = pair.directory_->file("rendezvous");
  pair.callee_ = std::make_unique<Child>(weft_worker("weft_callee", 1, rendezvous, spin, cpu));
  pair.caller_ = std::make_unique<Child>(weft_worker("weft_caller", 0, rendezvous, spin, cpu));
  pair.wait_until_ready();
  return pair;
}

WorkerPair WorkerPair::torch(const std::string& scripts, const std::string& channel) {
  WorkerPair pair;
  const std::string rendezvous = pair.directory_->file("rendezvous");
  pair.callee_ = std::make_unique<Child>(torch_worker(scripts, 1, rendezvous, channel));
  pair.caller_ = std::make_unique<Child>(torch_worker(scripts, 0, rendezvous, channel));
  pair.wait_until_ready();
  return pair;
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
