// What carries operations on CPU tensors in place of the agents' connections.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/devices/device_comm.h"

namespace weft::collective {

struct Carrier {
  std::string description;              // of this member
  std::vector<std::string> of_members;  // what the descriptions of all must be, by rank
  std::function<std::unique_ptr<DeviceComm>()> connect;
};

}  // namespace weft::collective
