// SPDX-License-Identifier: BSD-3-Clause
#include "support/raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>

#include "support/program.h"
#include "support/samples.h"
#include "support/system_error.h"

namespace bench {
namespace {

// The first byte of a ping tells the server how to wait for the next one, so that a spinning server
// spins only while it is being measured; the second what to do.
using Ping = std::array<uint8_t, kPingSize>;
constexpr size_t kOperand = 16;  // where in a ping four floats begin; four more follow

void add_in_place(Ping& message) {
  const at::Tensor a = at::from_blob(message.data() + kOperand, {4});
  const at::Tensor b = at::from_blob(message.data() + 2 * kOperand, {4});
  const at::Tensor sum = at::add(a, b);
  std::memcpy(message.data() + kOperand, sum.data_ptr(), kOperand);
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

Socket new_socket() {
  return Socket(check_system(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
}

void disable_nagle(const Socket& socket) {
  const int on = 1;
  check_system(setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "setsockopt");
}

void receive_answer(const Socket& socket, void* data, size_t size, Wait wait) {
  if (!receive_all(socket, data, size, wait))
    throw std::runtime_error("server closed instead of answering");
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket accept_one_caller() {
  const Socket listener = new_socket();
  sockaddr_in address = loopback(0);
  check_system(bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), "bind");
  check_system(listen(listener.fd(), 1), "listen");
  socklen_t size = sizeof(address);
  check_system(getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size),
               "getsockname");
  announce(std::to_string(ntohs(address.sin_port)));
  Socket caller(check_system(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC), "accept4"));
  disable_nagle(caller);
  return caller;
}

Socket connect_to_loopback(uint16_t port) {
  Socket socket = new_socket();
  const sockaddr_in address = loopback(port);
  check_system(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
               "connect");
  disable_nagle(socket);
  return socket;
}

void send_all(const Socket& socket, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(socket.fd(), next, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    check_system(sent, "send");
    next += sent;
    size -= static_cast<size_t>(sent);
  }
}

bool receive_all(const Socket& socket, void* data, size_t size, Wait wait) {
  char* next = static_cast<char*>(data);
  const size_t whole = size;
  while (size > 0) {
    const ssize_t got = recv(socket.fd(), next, size, wait == Wait::kSpinning ? MSG_DONTWAIT : 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    check_system(got, "recv");
    if (got == 0 && size == whole) return false;
    if (got == 0) throw std::runtime_error("peer closed in the middle of a message");
    next += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

double ping(const Socket& socket, size_t count, Wait wait, Work work) {
  Ping message{};
  message[1] = static_cast<uint8_t>(work);
  return median_microseconds(count, [&](size_t i) {
    const bool last = i + 1 == count;
    message[0] = static_cast<uint8_t>(last ? Wait::kBlocking : wait);
    send_all(socket, message.data(), message.size());
    receive_answer(socket, message.data(), message.size(), wait);
  });
}

void serve_pings(const Socket& socket) {
  Ping message{};
  while (receive_all(socket, message.data(), message.size(), static_cast<Wait>(message[0]))) {
    if (static_cast<Work>(message[1]) == Work::kAdd) add_in_place(message);
    send_all(socket, message.data(), message.size());
  }
}

void run_ping_server(const std::vector<std::string>&) { serve_pings(accept_one_caller()); }

void run_ping_caller(const std::vector<std::string>& arguments) {
  const Socket socket = connect_to_loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
  answer_commands({
      {"blocking", [&](size_t count) { return ping(socket, count, Wait::kBlocking); }},
      {"spinning", [&](size_t count) { return ping(socket, count, Wait::kSpinning); }},
      {"blocking+add",
       [&](size_t count) { return ping(socket, count, Wait::kBlocking, Work::kAdd); }},
      {"spinning+add",
       [&](size_t count) { return ping(socket, count, Wait::kSpinning, Work::kAdd); }},
  });
}

double echo(const Socket& socket, size_t count, size_t size) {
  const uint64_t header = size;
  std::vector<char> out(sizeof(header) + size, 1), in(size);
  std::memcpy(out.data(), &header, sizeof(header));
  return median_microseconds(count, [&](size_t) {
    send_all(socket, out.data(), out.size());
    receive_answer(socket, in.data(), size, Wait::kBlocking);
  });
}

void serve_echoes(const Socket& socket) {
  std::vector<char> buffer;
  for (uint64_t size = 0; receive_all(socket, &size, sizeof(size));) {
    if (buffer.size() < size) buffer.resize(size);
    receive_all(socket, buffer.data(), size);
    send_all(socket, buffer.data(), size);
  }
}

}  // namespace bench
