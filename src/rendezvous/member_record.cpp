// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/member_record.h"

#include <span>

#include <fmt/format.h>

#include "weft/codec.h"
#include "weft/error.h"

namespace weft::rendezvous {

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
}

}  // namespace weft::rendezvous
