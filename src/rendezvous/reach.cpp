// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "rendezvous/pause.h"
#include "rendezvous/run_until.h"
#include "transport/private_descriptor.h"

namespace weft::rendezvous {

namespace {

// An attempt ends soon after TCP has sent its first packet a second time: another address of the
// host may answer, and if a packet was lost no answer comes.
constexpr auto kLongestAttempt = std::chrono::seconds(3);

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

struct Resolved {
  std::vector<SocketAddress> addresses;
  std::string failure;
};

Resolved resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) return {{}, gai_strerror(status)};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  Resolved found;
  for (const addrinfo* each = list; each; each = each->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    found.addresses.push_back(address);
  }
  return found;
}

int milliseconds_until(base::Time deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 60'000));
}

// Returns zero, or the errno of the attempt.
int try_to_connect(const SocketAddress& address, base::Time deadline) {
  const transport::PrivateDescriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(socket.get(), generic, address.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd polled{socket.get(), POLLOUT, 0};
  if (::poll(&polled, 1, milliseconds_until(deadline)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

std::string wait_for_listener(const std::string& host, uint16_t port, base::Time deadline) {
  Pause pause(deadline);
  std::string reason = "the name was not resolved";
  for (;;) {
    const auto resolved = run_until(deadline, [host, port] { return resolve(host, port); });
    if (!resolved) return reason;
    if (resolved->addresses.empty()) reason = resolved->failure;
    for (const SocketAddress& address : resolved->addresses) {
      const base::Time attempt = std::chrono::steady_clock::now() + kLongestAttempt;
      const int error = try_to_connect(address, std::min(attempt, deadline));
      if (error == 0) return "";
      reason = std::generic_category().message(error);
    }
    if (pause.over()) return reason;
    pause.wait();
  }
}

}  // namespace weft::rendezvous
