// SPDX-License-Identifier: BSD-3-Clause
#include "transport/tcp/tcp_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::transport {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("not a TCP address: {}: \"{}\"", why, text));
}

}  // namespace

TcpAddress TcpAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) refuse(text, "host:port wanted");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
    refuse(text, "port out of range");
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) refuse(text, gai_strerror(status));
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  TcpAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  return address;
}

std::string TcpAddress::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, host,
              sizeof host);
    return fmt::format("{}:{}", host, port());
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, host,
            sizeof host);
  return fmt::format("[{}]:{}", host, port());
}

bool TcpAddress::is_any() const {
  if (storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == INADDR_ANY;
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

int TcpAddress::port() const {
  return ntohs(storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                   : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

}  // namespace weft::transport
