// SPDX-License-Identifier: BSD-3-Clause
#include "transport/stream_socket.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/descriptor_limit.h"

namespace weft::transport {

namespace {

// Why the last system call failed.
std::string reason() {
  if (errno != EMFILE) return strerror(errno);
  return fmt::format("{}; {}", strerror(EMFILE), base::describe_descriptor_limit());
}

}  // namespace

void throw_socket_error(const char* doing, const std::string& address) {
  const bool refused = errno == ECONNREFUSED;
  const std::string text = fmt::format("cannot {} {}: {}", doing, address, reason());
  if (refused) throw Refused(text);
  throw Error(ErrorCode::kUnavailable, text);
}

PrivateDescriptor open_stream_socket(int family, int protocol, const char* doing,
                                     const std::string& address) {
  for (;;) {
    PrivateDescriptor socket(
        ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol));
    if (socket) return socket;
    const int error = errno;
    if (error == EMFILE && base::raise_descriptor_limit()) continue;
    errno = error;
    throw_socket_error(doing, address);
  }
}

AcceptedSocket accept_socket(int listening, sockaddr* from, socklen_t* size) {
  const int fd = accept4(listening, from, size, SOCK_CLOEXEC);
  if (fd >= 0) return {PrivateDescriptor(fd)};
  switch (errno) {
    case EMFILE:
      if (base::raise_descriptor_limit()) return accept_socket(listening, from, size);
      errno = EMFILE;
      [[fallthrough]];
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return {{}, {Listener::Accepted::Status::kExhausted, nullptr, reason()}};
    default:
      // The peer left before it was accepted (ECONNABORTED and the like). The next event reports
      // other connections.
      return {};
  }
}

}  // namespace weft::transport
