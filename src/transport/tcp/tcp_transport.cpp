// SPDX-License-Identifier: BSD-3-Clause
#include "transport/tcp/tcp_transport.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/descriptor_limit.h"
#include "transport/private_descriptor.h"
#include "transport/socket_connection.h"
#include "transport/tcp/tcp_address.h"
#include "weft/error.h"

namespace weft::transport {

namespace {

// A large group connects to one of its members at the same time. The system has a limit of its own,
// net.core.somaxconn.
constexpr int kBacklog = 4096;
// So many bytes may wait in the system before it sends them. Urgent frames cannot overtake them:
// sending so many takes 20 ms at 100 Mbit/s. Bytes that were sent and not yet acknowledged do not
// count, so this does not limit the throughput of fast or long paths.
constexpr int kUnsentInSystem = 256 * 1024;

void set_options(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInSystem, sizeof kUnsentInSystem);
}

// Why the last system call failed.
std::string reason() {
  if (errno != EMFILE) return strerror(errno);
  return fmt::format("{}; {}", strerror(EMFILE), base::describe_descriptor_limit());
}

[[noreturn]] void fail(const char* doing, const std::string& address) {
  const int error = errno;
  const std::string text = fmt::format("cannot {} {}: {}", doing, address, reason());
  errno = error;
  if (errno == ECONNREFUSED) throw Refused(text);
  throw Error(ErrorCode::kUnavailable, text);
}

PrivateDescriptor open_socket(const TcpAddress& address, const char* doing) {
  for (;;) {
    PrivateDescriptor socket(::socket(address.storage.ss_family,
                                      SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    if (socket) return socket;
    const int error = errno;
    if (error == EMFILE && base::raise_descriptor_limit()) continue;
    errno = error;
    fail(doing, address.text());
  }
}

class TcpListener final : public Listener {
 public:
  TcpListener(PrivateDescriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  Accepted accept() override {
    TcpAddress from;
    from.size = sizeof from.storage;
    const int fd = accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                           SOCK_CLOEXEC);
    if (fd >= 0) {
      set_options(fd);
      return {Accepted::Status::kConnection,
              std::make_unique<SocketConnection>(PrivateDescriptor(fd), from.text())};
    }
    switch (errno) {
      case EMFILE:
        if (base::raise_descriptor_limit()) return accept();
        errno = EMFILE;
        [[fallthrough]];
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return {Accepted::Status::kExhausted, nullptr, reason()};
      default:
        // The peer left before it was accepted (ECONNABORTED and the like). The next event reports
        // other connections.
        return {Accepted::Status::kNone};
    }
  }

  std::string address() const override { return address_; }

 protected:
  int descriptor() const override { return socket_.get(); }

 private:
  PrivateDescriptor socket_;
  std::string address_;
};

class TcpTransport final : public Transport {
 public:
  std::unique_ptr<Listener> listen(const std::string& text) override {
    const TcpAddress wanted = TcpAddress::parse(text);
    PrivateDescriptor socket = open_socket(wanted, "listen on");
    const int on = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.get(), wanted.get(), wanted.size) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
      fail("listen on", text);
    }
    TcpAddress bound;
    bound.size = sizeof bound.storage;
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    return std::make_unique<TcpListener>(std::move(socket), bound.text());
  }

  std::unique_ptr<Connection> connect(const std::string& text) override {
    const TcpAddress to = TcpAddress::parse(text);
    PrivateDescriptor socket = open_socket(to, "connect to");
    set_options(socket.get());
    if (::connect(socket.get(), to.get(), to.size) != 0 && errno != EINPROGRESS) {
      fail("connect to", text);
    }
    return std::make_unique<SocketConnection>(std::move(socket), text);
  }
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport() { return std::make_unique<TcpTransport>(); }

}  // namespace weft::transport
