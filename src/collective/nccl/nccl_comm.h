// A connection of GPUs by NCCL.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "collective/devices/device_comm.h"

namespace weft::collective {

/// The end of the member at `place` with `device`. Its identity is empty if there is no NCCL.
std::unique_ptr<DeviceComm> make_nccl_comm(Place place, at::Device device);

}  // namespace weft::collective
