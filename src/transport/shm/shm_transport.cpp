// SPDX-License-Identifier: BSD-3-Clause
#include "transport/shm/shm_transport.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "transport/private_descriptor.h"
#include "transport/shm/shm_connection.h"
#include "transport/stream_socket.h"
#include "weft/error.h"

namespace weft::transport {

namespace {

// The name of a socket that is in no file system begins with a zero byte.
struct UnixAddress {
  sockaddr_un storage{};
  socklen_t size = 0;

  explicit UnixAddress(const std::string& name) {
    if (name.empty() || name.size() > sizeof storage.sun_path - 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("\"{}\" is no name of a socket: 1 to {} characters", name,
                              sizeof storage.sun_path - 1));
    }
    storage.sun_family = AF_UNIX;
    std::memcpy(storage.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::optional<ucred> other_end(int socket) {
  ucred process{};
  socklen_t size = sizeof process;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &size) != 0) return std::nullopt;
  return process;
}

// What is shared would give another user more than a stream of bytes does.
bool is_of_this_user(const std::optional<ucred>& process) {
  return process && process->uid == geteuid();
}

std::string new_name() {
  std::random_device random;
  return fmt::format("weft-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

class ShmListener final : public Listener {
 public:
  ShmListener(PrivateDescriptor socket, std::string name)
      : socket_(std::move(socket)), name_(std::move(name)) {}

  Accepted accept() override {
    AcceptedSocket accepted = accept_socket(socket_.get(), nullptr, nullptr);
    if (!accepted.socket) return std::move(accepted.otherwise);
    const std::optional<ucred> caller = other_end(accepted.socket.get());
    if (!is_of_this_user(caller)) return {Accepted::Status::kNone};
    return {Accepted::Status::kConnection,
            ShmConnection::await(std::move(accepted.socket), fmt::format("process {}", caller->pid),
                                 caller->pid)};
  }

  std::string address() const override { return name_; }

 protected:
  int descriptor() const override { return socket_.get(); }

 private:
  PrivateDescriptor socket_;
  std::string name_;
};

class ShmTransport final : public Transport {
 public:
  std::unique_ptr<Listener> listen(const std::string& wanted) override {
    const std::string name = wanted.empty() ? new_name() : wanted;
    const UnixAddress address(name);
    PrivateDescriptor socket = open_stream_socket(AF_UNIX, 0, "listen on", name);
    if (bind(socket.get(), address.get(), address.size) != 0 ||
        ::listen(socket.get(), kAcceptBacklog) != 0) {
      throw_socket_error("listen on", name);
    }
    return std::make_unique<ShmListener>(std::move(socket), name);
  }

  std::unique_ptr<Connection> connect(const std::string& name) override {
    const UnixAddress address(name);
    PrivateDescriptor socket = open_stream_socket(AF_UNIX, 0, "connect to", name);
    if (::connect(socket.get(), address.get(), address.size) != 0)
      throw_socket_error("connect to", name);
    const std::optional<ucred> other = other_end(socket.get());
    if (!is_of_this_user(other))
      throw Error(ErrorCode::kInvalidArgument, "the other worker belongs to another user");
    return ShmConnection::offer(std::move(socket), name, other->pid);
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

}  // namespace weft::transport
