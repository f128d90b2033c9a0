// What a member tells the others at the rendezvous.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::rendezvous {

/// The bytes are the fields in this order, as docs/wire_protocol.md encodes values.
struct MemberRecord {
  std::string name;
  std::string address;
  uint64_t incarnation = 0;
  uint64_t token = 0;  // rank 0's is the group's
  int32_t world_size = 0;
};

std::vector<uint8_t> encode_record(const MemberRecord& record);
/// Throws kInvalidArgument for bytes that are none; `rank` is whose they were to be.
MemberRecord decode_record(const std::vector<uint8_t>& bytes, int rank);

}  // namespace weft::rendezvous
