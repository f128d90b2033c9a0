// The interface of transports: ordered byte streams that can be waited for.
//
// docs/adding_a_transport.md says what an implementation owes; tests/contract checks it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "weft/error.h"

namespace weft::transport {

struct IoResult {
  enum class Status { kDone, kWouldBlock, kClosed };
  Status status;
  size_t bytes = 0;
  std::string why = {};  // for kClosed: "closed by peer", or the system's error text
};

/// A receive that waits looks up this often, so that its thread notices what else has happened.
inline constexpr auto kLongestReceive = std::chrono::milliseconds(100);

/// One end of a byte stream. send() and receive() never block; one thread may send while another
/// one receives; close_both_ways() may run at any time on any thread.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual IoResult send(const iovec* buffers, int count) = 0;
  virtual IoResult receive(void* to, size_t size) = 0;
  /// Waits for bytes, at most kLongestReceive; kWouldBlock if none came.
  virtual IoResult wait_and_receive(void* to, size_t size) = 0;

  /// Both ends get kClosed from now on, after bytes that arrived before; waits on the descriptor
  /// end.
  virtual void close_both_ways() = 0;
  /// The other end gets kClosed after everything sent so far; receiving goes on.
  virtual void finish_sending() = 0;

  /// Readable when receive() would not block, writable when send() would not: for poll and epoll.
  virtual int descriptor() const = 0;

  /// For a connection made by connect(), when the descriptor became writable: throws kUnavailable,
  /// Refused if nobody listens there, unless the connection stands.
  virtual void check_connected() {}
  virtual std::string remote_address() const = 0;
};

/// Nobody listens at the address.
class Refused : public Error {
 public:
  explicit Refused(const std::string& text) : Error(ErrorCode::kUnavailable, text) {}
};

class Listener {
 public:
  virtual ~Listener() = default;

  struct Accepted {
    enum class Status { kConnection, kNone, kExhausted };
    Status status;
    std::unique_ptr<Connection> connection = nullptr;
    std::string why = {};  // for kExhausted: out of descriptors or memory, try again later
  };
  virtual Accepted accept() = 0;

  virtual int descriptor() const = 0;
  /// The address with which connect() reaches this listener.
  virtual std::string address() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Throws kUnavailable if the address cannot be listened on.
  virtual std::unique_ptr<Listener> listen(const std::string& address) = 0;
  /// Starts to connect; never blocks. Throws kUnavailable if that fails at once, Refused if nobody
  /// listens there.
  virtual std::unique_ptr<Connection> connect(const std::string& address) = 0;
};

}  // namespace weft::transport
