// The record by which a member tells the others about itself at the rendezvous.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/store.h"

namespace weft::rendezvous {

/// docs/rendezvous.md lists the bytes: the fields in this order, as docs/wire_protocol.md encodes
/// values.
struct MemberRecord {
  std::string name;
  std::string address;
  uint64_t incarnation = 0;
  uint64_t token = 0;  // rank 0's is the group's
  int32_t world_size = 0;
  std::string host;  // host_identity() of the member; empty if unknown
};

Bytes encode_record(const MemberRecord& record);
/// Throws kInvalidArgument for bytes that are none; `rank` is whose they were to be.
MemberRecord decode_record(const Bytes& bytes, int rank);

/// Throws kInvalidArgument if members with these records, at these ranks, cannot be in one group:
/// they were told different world sizes, or one listens where the other's host cannot reach it.
void check_compatible(const MemberRecord& mine, int my_rank, const MemberRecord& other,
                      int other_rank);

}  // namespace weft::rendezvous
