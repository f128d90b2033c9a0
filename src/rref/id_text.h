// A reference's id, for people.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

#include <fmt/format.h>

#include "weft/detail/rref_id.h"

namespace weft::rref {

inline std::string text(const detail::RRefId& id) {
  return fmt::format("{:x}.{:x}.{}.{}", id.owner, id.creator, id.epoch, id.serial);
}

}  // namespace weft::rref
