// SPDX-License-Identifier: BSD-3-Clause
#include "support/zmq_anchor.h"

#ifdef WEFT_HAVE_ZMQ

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iostream>
#include <limits>
#include <thread>
#include <vector>

#include "support/program.h"
#include "support/samples.h"
#include "support/system_error.h"

namespace bench {
namespace {

constexpr size_t kMessageSize = 40;

void* open_socket(void* context, int type) {
  void* socket = zmq_socket(context, type);
  const int unlimited = 0;
  check_system(zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof(unlimited)), "ZMQ_SNDHWM");
  check_system(zmq_setsockopt(socket, ZMQ_RCVHWM, &unlimited, sizeof(unlimited)), "ZMQ_RCVHWM");
  check_system(zmq_setsockopt(socket, ZMQ_LINGER, &unlimited, sizeof(unlimited)), "ZMQ_LINGER");
  return socket;
}

}  // namespace

void serve_zmq_router() {
  void* context = zmq_ctx_new();
  void* router = open_socket(context, ZMQ_ROUTER);
  check_system(zmq_bind(router, "tcp://127.0.0.1:*"), "zmq_bind");
  std::array<char, 256> endpoint{};
  size_t size = endpoint.size();
  check_system(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint.data(), &size),
               "ZMQ_LAST_ENDPOINT");
  announce(endpoint.data());
  // A router does not notice that its last caller left; the end of our input says so.
  const std::jthread watcher([context] {
    std::cin.ignore(std::numeric_limits<std::streamsize>::max());
    zmq_ctx_shutdown(context);
  });
  zmq_msg_t part;
  zmq_msg_init(&part);
  for (;;) {
    // The parts of a message, the caller's identity first, go back as they came.
    if (zmq_msg_recv(&part, router, 0) < 0 && errno == ETERM) break;
    const int more = zmq_msg_more(&part) ? ZMQ_SNDMORE : 0;
    check_system(zmq_msg_send(&part, router, more), "zmq_msg_send");
  }
  zmq_msg_close(&part);
  zmq_close(router);
  zmq_ctx_term(context);
}

ZmqDealer::ZmqDealer(const std::string& endpoint)
    : context_(zmq_ctx_new()), socket_(open_socket(context_, ZMQ_DEALER)) {
  check_system(zmq_connect(socket_, endpoint.c_str()), "zmq_connect");
}

ZmqDealer::~ZmqDealer() {
  zmq_close(socket_);
  zmq_ctx_term(context_);
}

double ZmqDealer::echo_rate(size_t count, size_t outstanding) {
  const size_t window = std::min(count, outstanding);
  const auto start = Clock::now();
  for (size_t i = 0; i < window; ++i) send_one();
  for (size_t i = window; i < count; ++i) {
    receive_one();
    send_one();
  }
  for (size_t i = 0; i < window; ++i) receive_one();
  return 1e6 * static_cast<double>(count) / microseconds_since(start);
}

double ZmqDealer::echo_microseconds(size_t count, size_t size) {
  std::vector<char> out(size, 1), in(size);
  return median_microseconds(count, [&](size_t) {
    check_system(zmq_send(socket_, out.data(), size, 0), "zmq_send");
    check_system(zmq_recv(socket_, in.data(), size, 0), "zmq_recv");
  });
}

void ZmqDealer::send_one() {
  const std::array<char, kMessageSize> message{};
  check_system(zmq_send(socket_, message.data(), message.size(), 0), "zmq_send");
}

void ZmqDealer::receive_one() {
  std::array<char, kMessageSize> message;
  check_system(zmq_recv(socket_, message.data(), message.size(), 0), "zmq_recv");
}

}  // namespace bench

#endif
