// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/member_record.h"

#include <span>

#include <fmt/format.h>

#include "weft/codec.h"
#include "weft/error.h"

namespace weft::rendezvous {

std::vector<uint8_t> encode_record(const MemberRecord& record) {
  Encoder out;
  Codec<MemberRecord>::encode(out, record);
  const auto* data = reinterpret_cast<const uint8_t*>(out.payload().data());
  return {data, data + out.payload().size()};
}

MemberRecord decode_record(const std::vector<uint8_t>& bytes, int rank) {
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

}  // namespace weft::rendezvous
