// The record that a member writes for the others at the rendezvous.
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
  uint64_t token = 0;  // that of rank 0 becomes the token of the group
  int32_t world_size = 0;
  std::string host;  // host_identity() of the member; empty if unknown
};

Bytes encode_record(const MemberRecord& record);
/// Throws kInvalidArgument if the bytes are not a record; the text names `rank`, the member that
/// wrote them.
MemberRecord decode_record(const Bytes& bytes, int rank);

/// Records of members with successive ranks; they throw like decode_record.
Bytes encode_page(const std::vector<MemberRecord>& records);
std::vector<MemberRecord> decode_page(const Bytes& bytes);

/// The ranks whose records the rank 0 with this incarnation has not found.
struct MissingRanks {
  uint64_t incarnation = 0;
  std::vector<int32_t> ranks;
};
Bytes encode_missing(const MissingRanks& missing);
MissingRanks decode_missing(const Bytes& bytes);

/// Throws kInvalidArgument if members with these records cannot be in one group: their world sizes
/// differ, the other's name is none, or one of them listens on an address that the other's host
/// cannot reach.
void check_compatible(const MemberRecord& mine, int my_rank, const MemberRecord& other,
                      int other_rank);

}  // namespace weft::rendezvous
