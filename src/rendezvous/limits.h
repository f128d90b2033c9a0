// How large a group may be.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft::rendezvous {

/// Ids of distributed autograd contexts hold a rank in 15 bits, notes of calls in 16.
inline constexpr int kMostMembers = 32'767;

}  // namespace weft::rendezvous
