// A connection of GPUs by NCCL.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "collective/devices/device_comm.h"

namespace weft::collective {

/// The end of the member at `place`, which uses `device`. If the process has no NCCL, its
/// identity() is empty.
std::unique_ptr<DeviceComm> make_nccl_comm(Place place, at::Device device);

}  // namespace weft::collective
