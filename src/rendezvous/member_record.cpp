// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/member_record.h"

#include <span>

#include <fmt/format.h>

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

}  // namespace

Bytes encode_record(const MemberRecord& record) {
  Encoder out;
  Codec<MemberRecord>::encode(out, record);
  const auto* data = reinterpret_cast<const uint8_t*>(out.payload().data());
  return {data, data + out.payload().size()};
}

MemberRecord decode_record(const Bytes& bytes, int rank) {
  try {
    Decoder in(std::as_bytes(std::span(bytes)), {});
    MemberRecord record = Codec<MemberRecord>::decode(in);
    in.finish();
    return record;
  } catch (const Error& error) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the record of rank {} at the rendezvous is not that of a member of this "
                    "version: {}",
                    rank, error.message()));
  }
}

void check_compatible(const MemberRecord& mine, int my_rank, const MemberRecord& other,
                      int other_rank) {
  if (other.world_size != mine.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} says the group has {} members, rank {} says {}", other_rank,
                            other.world_size, my_rank, mine.world_size));
  }
  check_reachable(other, other_rank, mine, my_rank);
  check_reachable(mine, my_rank, other, other_rank);
}

}  // namespace weft::rendezvous
