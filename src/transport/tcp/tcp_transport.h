// Connections over TCP.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "transport/connection.h"

namespace weft::transport {

/// Addresses are "host:port"; port 0 listens on a free one.
std::unique_ptr<Transport> make_tcp_transport();

}  // namespace weft::transport
