// To every member the nearest way: shared memory to processes of the same host and user, TCP to all
// others.
//
// An address has the way that all can take first, and then, after a space, a further one:
// "10.0.0.1:4711 shm:weft-f00d". A member that cannot take the further way, because it runs on
// another host, in a container with its own network or as another user, takes the first.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <string>

#include "transport/connection.h"

namespace weft::transport {

std::unique_ptr<Transport> make_nearest_transport();

}  // namespace weft::transport
