// The messages that members of a group send each other: ordinary functions under names that start
// with "sys.". The connection tells which member calls.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include "collective/algorithms/operation_message.h"
#include "collective/channels/channel.h"

namespace weft::collective {

void register_reserved_functions();

ChunkReply sys_collective_chunk(Chunk chunk);
void sys_collective_fail(ChannelId channel, uint8_t code, std::string cause);
/// Called by a member that waits for this one in `awaited`. The reply says whether this member has
/// left the channel and has no chunk for the caller on its way, so that waiting is useless.
ChunkReply sys_collective_attends(ChannelId channel, Channel::Awaited awaited);

}  // namespace weft::collective
