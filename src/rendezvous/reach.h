// Waiting until somebody listens at a host and port.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace weft::rendezvous {

/// Tries to connect until that works or the deadline passes. Returns "" if somebody listens there,
/// otherwise why the last attempt failed. Every failure is tried again: the host name may not be
/// known yet, or the process not started. The connection is closed at once.
std::string wait_for_listener(const std::string& host, uint16_t port, base::Time deadline);

}  // namespace weft::rendezvous
