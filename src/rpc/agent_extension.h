// Agent extensions: the state and the hooks that a layer above adds to every agent.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/debug_info.h"
#include "weft/detail/ref_counted.h"
#include "weft/error.h"
#include "weft/worker_info.h"

namespace weft::rpc {

class AgentCore;
class Companion;

struct Idleness {
  bool idle = true;       // a graceful shutdown need not wait
  uint64_t activity = 0;  // grows with every piece of work: if it is the same, there was none
};

class AgentExtension {
 public:
  virtual ~AgentExtension() = default;

  /// The agent is about to stop. Calls may still come until its connections close.
  virtual void on_stopping() {}
  /// A graceful shutdown waits until every extension of every agent is idle.
  virtual Idleness idleness() { return {}; }
  /// The work that is left while the extension is not idle, for people.
  virtual std::string unfinished() { return {}; }
  /// A reply to `receiver` is about to be sent that refers to `objects`.
  virtual void keep_for_receiver(const WorkerInfo& receiver,
                                 const std::vector<detail::Ref<detail::RefCounted>>& objects) {
    (void)receiver;
    (void)objects;
  }
  /// A call came with `note`. Returns the companion that is current while its function runs; null:
  /// none. May change `tensors`, its arguments. Throws kBadMessage for a note that is malformed,
  /// another error to refuse the call.
  virtual detail::Ref<Companion> on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                         std::span<at::Tensor> tensors);
  /// The agent has found out that `member` is gone (rpc/group/liveness.h). Comes on a thread that
  /// may block; again if the member came back and is gone again.
  virtual void on_member_gone(const WorkerInfo& member, const Error& why) {
    (void)member;
    (void)why;
  }
  virtual void describe(DebugInfo& info) { (void)info; }
};

using MakeExtension = std::shared_ptr<AgentExtension> (*)(AgentCore&);

/// Every agent that starts from now on gets such an extension; AgentCore::extension() finds it by
/// the index that is returned. Called before main.
size_t register_agent_extension(MakeExtension make);

/// One of each registered kind, for `agent`.
std::vector<std::shared_ptr<AgentExtension>> make_agent_extensions(AgentCore& agent);

}  // namespace weft::rpc
