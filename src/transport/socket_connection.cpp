// SPDX-License-Identifier: BSD-3-Clause
#include "transport/socket_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

namespace weft::transport {

namespace {

IoResult failed() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoResult::Status::kWouldBlock};
  return {IoResult::Status::kClosed, 0, strerror(errno)};
}

}  // namespace

IoResult SocketConnection::send(const iovec* buffers, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers);
  message.msg_iovlen = static_cast<size_t>(count);
  for (;;) {
    const ssize_t n = count == 1 ? ::send(socket_.get(), buffers->iov_base, buffers->iov_len,
                                          MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) return {IoResult::Status::kDone, static_cast<size_t>(n)};
    if (errno != EINTR) return failed();
  }
}

// The socket is in blocking mode for wait_and_receive(), whose limit is set here, once. All other
// calls pass MSG_DONTWAIT.
SocketConnection::SocketConnection(PrivateDescriptor socket, std::string remote, const char* way)
    : socket_(std::move(socket)), remote_(std::move(remote)), way_(way) {
  const timeval limit{0, std::chrono::microseconds(kLongestReceive).count()};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

IoResult SocketConnection::receive(void* to, size_t size) {
  return receive_with(to, size, MSG_DONTWAIT);
}

IoResult SocketConnection::wait_and_receive(void* to, size_t size) {
  return receive_with(to, size, 0);
}

IoResult SocketConnection::receive_with(void* to, size_t size, int flags) {
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), to, size, flags);
    if (n > 0) return {IoResult::Status::kDone, static_cast<size_t>(n)};
    if (n == 0) return {IoResult::Status::kClosed, 0, "closed by peer"};
    if (errno != EINTR) return failed();
  }
}

void SocketConnection::close_both_ways() { ::shutdown(socket_.get(), SHUT_RDWR); }
void SocketConnection::finish_sending() { ::shutdown(socket_.get(), SHUT_WR); }

void SocketConnection::check_connected() {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == ECONNREFUSED) throw Refused(strerror(error));
  if (error != 0) throw Error(ErrorCode::kUnavailable, strerror(error));
  const int flags = fcntl(socket_.get(), F_GETFL);
  fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
}

}  // namespace weft::transport
