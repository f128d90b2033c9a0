// Plain TCP over loopback, and the anchors made of nothing but it: a ping-pong of one small
// message and an echo of a large one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// Owns a descriptor.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;

  int fd() const { return fd_; }

 private:
  int fd_;
};

/// Listens on a free loopback port, announces the port on standard output, accepts one connection.
Socket accept_one_caller();
Socket connect_to_loopback(uint16_t port);

/// How a receiver waits for bytes: asleep in the kernel, or polling.
enum class Wait : uint8_t { kBlocking, kSpinning };

void send_all(const Socket& socket, const void* data, size_t size);

/// False when the peer closed before the first byte.
bool receive_all(const Socket& socket, void* data, size_t size, Wait wait = Wait::kBlocking);

constexpr size_t kPingSize = 64;

/// What the server does with a ping before it answers: nothing, or an addition of four floats,
/// which is what no remote addition can do without.
enum class Work : uint8_t { kNone, kAdd };

/// Median round trip in microseconds. Both sides wait in the given way; between two calls the
/// server blocks.
double ping(const Socket& socket, size_t count, Wait wait, Work work = Work::kNone);

/// Answers pings until the caller closes.
void serve_pings(const Socket& socket);

// The roles around them; the caller answers "blocking" and "spinning", and "blocking+add" and
// "spinning+add".
void run_ping_server(const std::vector<std::string>& arguments);
void run_ping_caller(const std::vector<std::string>& arguments);

/// Median microseconds for `size` bytes to go out and come back, buffers warm on both sides. The
/// server has all of them before it answers, as a function of a tensor has to.
double echo(const Socket& socket, size_t count, size_t size);

/// Answers echoes until the caller closes.
void serve_echoes(const Socket& socket);

}  // namespace bench
