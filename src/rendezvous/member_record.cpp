// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/member_record.h"

#include <span>

#include <fmt/format.h>

#include "rendezvous/group.h"
#include "weft/codec.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]:") ||
         address.starts_with("[::ffff:127.");
}

// Both members find the same mistake, and both error texts name the member that made it.
void check_reachable(const MemberRecord& member, int rank, const MemberRecord& other,
                     int other_rank) {
  const bool one_host = member.host == other.host || member.host.empty() || other.host.empty();
  if (one_host || !is_loopback(member.address)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("rank {} (\"{}\") listens on {}, which only its own host reaches, and rank "
                  "{} (\"{}\") is on another host; set WEFT_ADDRESS, or Options::address, on "
                  "every host to the address under which the others reach it",
                  rank, member.name, member.address, other_rank, other.name));
}

// The name comes from the store, where anybody may have written it.
void check_name_of(const MemberRecord& member, int rank) {
  try {
    check_name(member.name);
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the record of rank {} at the rendezvous: {}", rank, error.message()));
  }
}

template <typename T>
Bytes bytes_of(const T& value) {
  Encoder out;
  Codec<T>::encode(out, value);
  const auto* data = reinterpret_cast<const uint8_t*>(out.payload().data());
  return {data, data + out.payload().size()};
}

template <typename T>
T value_of(const Bytes& bytes, const std::string& what) {
  try {
    Decoder in(std::as_bytes(std::span(bytes)), {});
    T value = Codec<T>::decode(in);
    in.finish();
    return value;
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} at the rendezvous is not that of a member of this version: {}",
                            what, error.message()));
  }
}

}  // namespace

Bytes encode_record(const MemberRecord& record) { return bytes_of(record); }
MemberRecord decode_record(const Bytes& bytes, int rank) {
  return value_of<MemberRecord>(bytes, fmt::format("the record of rank {}", rank));
}

Bytes encode_page(const std::vector<MemberRecord>& records) { return bytes_of(records); }
std::vector<MemberRecord> decode_page(const Bytes& bytes) {
  return value_of<std::vector<MemberRecord>>(bytes, "the roll of rank 0");
}

Bytes encode_missing(const MissingRanks& missing) { return bytes_of(missing); }
MissingRanks decode_missing(const Bytes& bytes) {
  return value_of<MissingRanks>(bytes, "the list of ranks that rank 0 misses");
}

void check_compatible(const MemberRecord& mine, int my_rank, const MemberRecord& other,
                      int other_rank) {
  if (other.world_size != mine.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} says the group has {} members, rank {} says {}", other_rank,
                            other.world_size, my_rank, mine.world_size));
  }
  check_name_of(other, other_rank);
  check_reachable(other, other_rank, mine, my_rank);
  check_reachable(mine, my_rank, other, other_rank);
}

}  // namespace weft::rendezvous
