// Waiting until somebody listens at a host and port.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace weft::rendezvous {

/// Returns as soon as a connection could be made, which it closes again. Else the reason, at the
/// deadline: the name may not be known yet, nor the process be started. Empty: somebody listens.
std::string wait_for_listener(const std::string& host, uint16_t port, base::Time deadline);

}  // namespace weft::rendezvous
