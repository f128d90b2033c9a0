// A process group of c10d's as what moves the tensors of a channel.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <c10/util/intrusive_ptr.h>

#include "collective/devices/carrier.h"

namespace c10d {
class ProcessGroup;
}

namespace weft::collective {

/// For tensors on the CPU. The members of `group` must be those of the channel, by place. Throws
/// kInvalidArgument if there is no group.
Carrier c10d_carrier(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace weft::collective
