// A port of the loopback interface.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

#include "transport/private_descriptor.h"

namespace weft::test {

/// Taken until it is destroyed: others cannot listen there, and nobody answers a connection.
class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_.get(), generic, size) != 0 || ::listen(socket_.get(), 16) != 0 ||
        ::getsockname(socket_.get(), generic, &size) != 0) {
      throw std::runtime_error("no free port");
    }
    number_ = ntohs(address.sin_port);
  }
  // Connections that were never accepted would be reset, on which the threads of c10d's store end
  // the process.
  ~SilentPort() {
    while (transport::PrivateDescriptor(::accept(socket_.get(), nullptr, nullptr))) {
    }
  }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  uint16_t number() const { return number_; }

 private:
  transport::PrivateDescriptor socket_;
  uint16_t number_ = 0;
};

/// Nobody has it at the moment.
inline uint16_t free_port() { return SilentPort().number(); }

}  // namespace weft::test
