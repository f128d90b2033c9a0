// The anchor for pipelined calls: a ZeroMQ dealer that keeps many small messages outstanding at a
// router which sends each back. Exists only where the build found libzmq (WEFT_HAVE_ZMQ).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#ifdef WEFT_HAVE_ZMQ

#include <cstddef>
#include <string>

namespace bench {

/// Binds, announces its endpoint and echoes until standard input ends.
void serve_zmq_router();

class ZmqDealer {
 public:
  explicit ZmqDealer(const std::string& endpoint);
  ~ZmqDealer();
  ZmqDealer(const ZmqDealer&) = delete;
  ZmqDealer& operator=(const ZmqDealer&) = delete;

  /// Messages per second that went out and came back, never more than `outstanding` at once.
  double echo_rate(size_t count, size_t outstanding);
  /// Median microseconds for a message of `size` bytes to go out and come back.
  double echo_microseconds(size_t count, size_t size);

 private:
  void send_one();
  void receive_one();

  void* context_;
  void* socket_;
};

}  // namespace bench

#endif
