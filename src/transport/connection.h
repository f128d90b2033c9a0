// The interface of a transport: ordered byte streams that can be waited for.
//
// docs/adding_a_transport.md says what an implementation must do; tests/contract checks it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "transport/event_source.h"
#include "transport/private_descriptor.h"
#include "weft/error.h"

namespace weft::transport {

struct IoResult {
  enum class Status { kDone, kWouldBlock, kClosed };
  Status status;
  size_t bytes = 0;
  std::string why = {};  // for kClosed: "closed by peer", or the system's error text
};

/// wait_and_receive() returns after this time at the latest, so that its thread can look for other
/// events.
inline constexpr auto kLongestReceive = std::chrono::milliseconds(100);

/// Descriptors that go beside the bytes of a connection between two processes of one host. Any
/// thread.
class DescriptorLane {
 public:
  virtual ~DescriptorLane() = default;
  /// Gives the other end a copy. Bytes that are sent from now on arrive after it. False: the other
  /// end has not taken what it was given before, or is gone.
  virtual bool hand_over(const PrivateDescriptor& descriptor) = 0;
  /// The oldest one that the other end has handed over and that was not taken; none if there is
  /// none.
  virtual PrivateDescriptor take_descriptor() = 0;
  /// The other end's process; zero if it has no number that this process could use.
  virtual pid_t other_process() const = 0;
};

/// One end of a byte stream. It is readable when receive() would not block, and writable when
/// send() would not. send() and receive() never block; one thread may send while another one
/// receives; close_both_ways() may run at any time on any thread.
class Connection : public EventSource {
 public:
  virtual IoResult send(const iovec* buffers, int count) = 0;
  virtual IoResult receive(void* to, size_t size) = 0;
  /// Whether receive() costs no system call when nothing has come.
  virtual bool polls_cheaply() const { return false; }
  /// Waits for bytes, at most kLongestReceive; kWouldBlock if none came.
  virtual IoResult wait_and_receive(void* to, size_t size) = 0;

  /// From now on send() and receive() at both ends return kClosed; receive() first returns the
  /// bytes that have arrived. Threads that wait for the connection wake up.
  virtual void close_both_ways() = 0;
  /// receive() at the other end returns everything sent so far and then kClosed. This end can still
  /// receive.
  virtual void finish_sending() = 0;

  /// To be called on a connection made by connect() when it has become writable. Throws Refused if
  /// nobody listens there, or kUnavailable, unless the connection is established.
  virtual void check_connected() {}
  virtual const std::string& remote_address() const = 0;
  /// How bytes go: "tcp", "shm".
  virtual std::string way() const = 0;
  /// Null unless descriptors can go beside the bytes.
  virtual DescriptorLane* descriptor_lane() { return nullptr; }
};

/// Nobody listens at the address.
class Refused : public Error {
 public:
  explicit Refused(const std::string& text) : Error(ErrorCode::kUnavailable, text) {}
};

/// It is readable when accept() would give something.
class Listener : public EventSource {
 public:
  struct Accepted {
    enum class Status { kConnection, kNone, kExhausted };
    Status status;
    std::unique_ptr<Connection> connection = nullptr;
    std::string why = {};  // for kExhausted: out of descriptors or memory, try again later
  };
  virtual Accepted accept() = 0;

  /// The address with which connect() reaches this listener.
  virtual std::string address() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Throws kUnavailable if the address cannot be listened on.
  virtual std::unique_ptr<Listener> listen(const std::string& address) = 0;
  /// Begins to connect; never blocks. If that fails at once, throws Refused if nobody listens
  /// there, otherwise kUnavailable.
  virtual std::unique_ptr<Connection> connect(const std::string& address) = 0;
  /// A connection to `address` ended before its other end had said anything. Whether the next
  /// connect() goes another way.
  virtual bool takes_other_way(const std::string&, const Connection&, const std::string& /*why*/) {
    return false;
  }
  /// Why connections to `address` do not go the nearest way; empty if they do.
  virtual std::string detour(const std::string&) const { return {}; }
};

}  // namespace weft::transport
