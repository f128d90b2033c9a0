// Sends one chunk of an operation to another member.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>

#include "collective/algorithms/operation_message.h"
#include "rpc/agent_core.h"
#include "weft/detail/task.h"

namespace weft::collective {

/// Runs `task`, which may block, on the I/O loop. (What takes long: IoLoop::post_long_task.)
void post(rpc::Runtime& runtime, detail::Task task);

struct OutgoingChunk {
  Chunk chunk;
  bool lasting = false;  // nobody changes the tensors: a receiver on this host reads them in place
};

/// `arrived`, if there is one, is called when `to` has the tensors, or has left the channel without
/// an error. If the connection breaks, the chunk is sent again: a receiver drops a chunk that it
/// has already. If the chunk cannot be sent, the channel fails.
void send_chunk(rpc::AgentCore& agent, const WorkerInfo& to, const OutgoingChunk& chunk,
                std::function<void()> arrived);

}  // namespace weft::collective
