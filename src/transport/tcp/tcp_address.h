// "host:port" and "[host]:port" as socket addresses.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/socket.h>

#include <string>

namespace weft::transport {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string text() const;
  bool is_any() const;
  int port() const;

  /// Throws kInvalidArgument if the text is not an address or the host cannot be resolved.
  static TcpAddress parse(const std::string& text);
};

}  // namespace weft::transport
