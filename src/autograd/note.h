// The notes that travel with calls and replies of a context.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rendezvous/limits.h"
#include "rpc/companion.h"
#include "weft/codec.h"

namespace weft::autograd {

struct CallNote {
  int64_t context = 0;
  uint64_t message = 0;  // the sender's number for what it sent; zero: nothing that needs gradients
};

/// As many ranks as fit a note; the creator learns of other workers when it asks, in a pass.
inline constexpr size_t kMostParticipants = 500;
struct ReplyNote {
  static constexpr uint64_t kEnded = ~uint64_t{0};  // the context has ended there
  uint64_t message = 0;
  // Workers that calls in this context have reached from the callee so far, also through others.
  std::vector<uint16_t> participants;
  bool more = false;  // there were others
};
static_assert(rendezvous::kMostMembers <= UINT16_MAX, "a participant's rank must fit");

template <typename T>
rpc::Note encode_note(const T& note) {
  Encoder out;
  Codec<T>::encode(out, note);
  return {out.payload().begin(), out.payload().end()};
}

/// Throws kBadMessage.
template <typename T>
T decode_note(std::span<const std::byte> note) {
  Decoder in(note, {});
  T value = Codec<T>::decode(in);
  in.finish();
  return value;
}

}  // namespace weft::autograd
