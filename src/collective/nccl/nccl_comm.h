// A connection of GPUs by NCCL.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "collective/devices/device_comm.h"

namespace weft::collective {

/// Of the member at `place` with `device`. Where NCCL is not there its identity says so.
std::unique_ptr<DeviceComm> make_nccl_comm(Place place, at::Device device);

}  // namespace weft::collective
