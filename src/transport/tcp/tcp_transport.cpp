// SPDX-License-Identifier: BSD-3-Clause
#include "transport/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "transport/private_descriptor.h"
#include "transport/socket_connection.h"
#include "transport/stream_socket.h"
#include "transport/tcp/tcp_address.h"

namespace weft::transport {

namespace {

// So many bytes may wait in the system before it sends them. Urgent frames cannot overtake them:
// sending so many takes 20 ms at 100 Mbit/s. Bytes that were sent and not yet acknowledged do not
// count, so this does not limit the throughput of fast or long paths.
constexpr int kUnsentInSystem = 256 * 1024;

// A connection over which nothing goes is looked at after so many seconds, and ends after so many
// unanswered looks more: the end that accepted sends nothing by itself, and would not notice that
// the other host is gone. There is no limit for unacknowledged bytes besides the system's: a peer
// may leave bytes unread for long.
constexpr int kIdleSeconds = 60;
constexpr int kSecondsBetweenLooks = 15;
constexpr int kLooks = 4;

void set_options(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kSecondsBetweenLooks,
             sizeof kSecondsBetweenLooks);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kLooks, sizeof kLooks);
  setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInSystem, sizeof kUnsentInSystem);
}

class TcpListener final : public Listener {
 public:
  TcpListener(PrivateDescriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  Accepted accept() override {
    TcpAddress from;
    from.size = sizeof from.storage;
    AcceptedSocket accepted =
        accept_socket(socket_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size);
    if (!accepted.socket) return std::move(accepted.otherwise);
    set_options(accepted.socket.get());
    return {Accepted::Status::kConnection,
            std::make_unique<SocketConnection>(std::move(accepted.socket), from.text(), "tcp")};
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
    PrivateDescriptor socket = open(wanted, "listen on");
    const int on = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.get(), wanted.get(), wanted.size) != 0 ||
        ::listen(socket.get(), kAcceptBacklog) != 0) {
      throw_socket_error("listen on", text);
    }
    TcpAddress bound;
    bound.size = sizeof bound.storage;
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    return std::make_unique<TcpListener>(std::move(socket), bound.text());
  }

  std::unique_ptr<Connection> connect(const std::string& text) override {
    const TcpAddress to =
        TcpAddress::parse(text.substr(0, text.find(' ')));  // a further way follows
    PrivateDescriptor socket = open(to, "connect to");
    set_options(socket.get());
    if (::connect(socket.get(), to.get(), to.size) != 0 && errno != EINPROGRESS) {
      throw_socket_error("connect to", text);
    }
    return std::make_unique<SocketConnection>(std::move(socket), text, "tcp");
  }

 private:
  static PrivateDescriptor open(const TcpAddress& address, const char* doing) {
    return open_stream_socket(address.storage.ss_family, IPPROTO_TCP, doing, address.text());
  }
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport() { return std::make_unique<TcpTransport>(); }

}  // namespace weft::transport
