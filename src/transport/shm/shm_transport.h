// Shared memory between processes of one host and one user.
//
// An address is the name of a Unix socket in the abstract namespace: it is in no file system, and
// gone with its process.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "transport/connection.h"

namespace weft::transport {

/// listen("") makes up an address that nobody can guess. connect() throws kInvalidArgument if the
/// process that listens belongs to another user.
std::unique_ptr<Transport> make_shm_transport();

}  // namespace weft::transport
