// The functions by which members of a process group speak, under names that begin with "sys.". The
// connection tells who calls.
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
/// Asked by a member that waits for the callee in an operation: whether it waits in vain.
ChunkReply sys_collective_attends(ChannelId channel, Channel::Awaited awaited);

}  // namespace weft::collective
