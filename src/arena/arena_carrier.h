// The carrier between processes of one host: a tensor is one copy in the sender's arena, which the
// receiver uses in place.
//
// A place is u32 loan, u64 offset in the arena. Each end hands its arena over before it places the
// first tensor there.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "transport/connection.h"
#include "wire/carrier.h"

namespace weft::arena {

/// The number of this carrier in rows.
inline constexpr uint8_t kArenaCarrier = 1;

/// Null if the connection is none between processes of one host. The connection outlives the
/// carrier.
std::unique_ptr<wire::Carrier> make_arena_carrier(transport::Connection& connection);

}  // namespace weft::arena
