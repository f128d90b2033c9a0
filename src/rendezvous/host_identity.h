// An identity of this host. It tells whether two members reach each other's loopback addresses.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

namespace weft::rendezvous {

/// The kernel's boot id and the number of the network namespace. Two processes have the same
/// identity exactly if they have the same loopback interface. Empty if the system does not tell.
std::string host_identity();

}  // namespace weft::rendezvous
