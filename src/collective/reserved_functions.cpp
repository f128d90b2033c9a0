// SPDX-License-Identifier: BSD-3-Clause
#include "collective/reserved_functions.h"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "collective/process_groups.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/server.h"
#include "weft/detail/function_entry.h"

namespace weft::collective {

namespace {

/// A channel of this worker that the caller is a member of too.
struct Addressed {
  std::shared_ptr<Channel> channel;  // null if there is none
  int from = -1;
};

Addressed find(const ChannelId& id) {
  rpc::IncomingCall* call = rpc::IncomingCall::current();
  const auto group = ProcessGroups::of(call->server().agent()).find(id.group);
  if (!group) return {};
  const int from = group->rank_of(call->caller().id);
  if (from < 0) return {};
  return {group->find_channel(id.channel), from};
}

ChunkReply why_gone(const ChannelId& id) {
  return ProcessGroups::of(rpc::IncomingCall::current()->server().agent()).why_gone(id);
}

}  // namespace

ChunkReply sys_collective_chunk(Chunk chunk) {
  const auto [channel, from] = find(chunk.channel);
  if (!channel) return why_gone(chunk.channel);
  channel->on_chunk(from, std::move(chunk));
  return {};
}

void sys_collective_fail(ChannelId id, uint8_t code, std::string cause) {
  const auto [channel, from] = find(id);
  if (!channel) return;
  channel->fail(told_error(code, cause));
}

ChunkReply sys_collective_attends(ChannelId id, Channel::Awaited awaited) {
  const auto [channel, from] = find(id);
  if (channel) {
    channel->on_asked(from, awaited);
    return {};
  }
  // The caller may be waiting for a chunk that this member sent before it left.
  rpc::IncomingCall* call = rpc::IncomingCall::current();
  if (ProcessGroups::of(call->server().agent()).is_sending(id, call->caller().id)) return {};
  return why_gone(id);
}

void register_reserved_functions() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::RemoteFunction<sys_collective_chunk>::reserve("sys.collective.chunk");
    detail::RemoteFunction<sys_collective_fail>::reserve("sys.collective.fail");
    detail::RemoteFunction<sys_collective_attends>::reserve("sys.collective.attends");
  });
}

}  // namespace weft::collective
