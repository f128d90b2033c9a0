// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_comm.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::collective {

void DeviceOperation::come_after_current_work(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl accelerator(device.type());
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(accelerator.getStream(device));
  after.push_back(std::move(event));
}

}  // namespace weft::collective
