// Which host this is, to tell whether two members reach each other's loopback addresses.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

namespace weft::rendezvous {

/// Equal for two processes exactly if they have the same loopback interface: the kernel's boot id
/// and the number of the network namespace. Empty if the system does not tell.
std::string host_identity();

}  // namespace weft::rendezvous
