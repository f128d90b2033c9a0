// Finds a directory and a port for workers to meet at.
// SPDX-License-Identifier: BSD-3-Clause

#include "process/worker_environment.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "process/descriptor.h"

namespace weft::process {
namespace {

constexpr std::string_view kOfRank[] = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE="};

bool belongs_to_rank(std::string_view variable) {
  for (const std::string_view name : kOfRank) {
    if (variable.starts_with(name)) return true;
  }
  return false;
}

// The port is free now, but may be taken when the program opens it. Weft itself does not use it.
int find_free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) throw_errno("cannot find a free port");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    throw_errno("cannot find a free port");
  }
  return ntohs(address.sin_port);
}

}  // namespace

WorkerEnvironment::WorkerEnvironment(int workers) : workers_(workers) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!belongs_to_rank(*variable)) shared_.emplace_back(*variable);
  }
  if (std::getenv("WEFT_RENDEZVOUS") == nullptr) {
    meeting_place_.emplace();
    shared_.push_back(fmt::format("WEFT_RENDEZVOUS=file://{}/store", meeting_place_->path()));
  }
  set_unless_present("MASTER_ADDR", "127.0.0.1");
  set_unless_present("MASTER_PORT", std::to_string(find_free_port()));
}

std::vector<std::string> WorkerEnvironment::of_rank(int rank) const {
  std::vector<std::string> variables = shared_;
  variables.push_back(fmt::format("RANK={}", rank));
  variables.push_back(fmt::format("WORLD_SIZE={}", workers_));
  variables.push_back(fmt::format("LOCAL_RANK={}", rank));
  variables.push_back(fmt::format("LOCAL_WORLD_SIZE={}", workers_));
  return variables;
}

void WorkerEnvironment::set_unless_present(const char* name, const std::string& value) {
  if (std::getenv(name) == nullptr) shared_.push_back(fmt::format("{}={}", name, value));
}

}  // namespace weft::process
