// Opening and accepting stream sockets of any family, where descriptors may run out.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>

#include "transport/connection.h"
#include "transport/private_descriptor.h"

namespace weft::transport {

/// How many connections may wait to be accepted: a large group connects to one of its members at
/// the same time. The system has a limit of its own, net.core.somaxconn.
inline constexpr int kAcceptBacklog = 4096;

/// Throws Refused if the last system call, of `doing` something with `address`, says that nobody
/// listens there, otherwise kUnavailable.
[[noreturn]] void throw_socket_error(const char* doing, const std::string& address);

/// A socket that does not block; raises the limit of descriptors if need be. Throws kUnavailable.
PrivateDescriptor open_stream_socket(int family, int protocol, const char* doing,
                                     const std::string& address);

/// One connection of a listening socket, or why there is none.
struct AcceptedSocket {
  PrivateDescriptor socket;
  Listener::Accepted otherwise{Listener::Accepted::Status::kNone};
};
AcceptedSocket accept_socket(int listening, sockaddr* from, socklen_t* size);

}  // namespace weft::transport
