// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/host_identity.h"

#include <sys/stat.h>

#include <fstream>

#include <fmt/format.h>

namespace weft::rendezvous {

// Containers of one host have its boot id; those that share its network, the namespace as well.
std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  struct stat network = {};
  if (!std::getline(file, boot_id) || ::stat("/proc/thread-self/ns/net", &network) != 0) return "";
  return fmt::format("{}/{}", boot_id, network.st_ino);
}

}  // namespace weft::rendezvous
