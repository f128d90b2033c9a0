// A connection between two processes of one host: bytes go through two rings in memory that both
// map.
//
// A thread that waits for one connection sleeps on a word of that memory, the bell of its end, and
// so do others that wait for the same connection: each looks for itself what has come. A poller,
// which waits for many connections, is given a sign through a Unix socket. The socket also tells
// that the other process has died: at once to pollers, to sleeping threads after 100 ms.
// Descriptors go through a socket of their own, so that nobody who looks for one takes a sign away.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "transport/connection.h"
#include "transport/private_descriptor.h"
#include "transport/shm/ring.h"
#include "transport/shm/shared_memory.h"

namespace weft::transport {

class ShmConnection final : public Connection, private DescriptorLane {
 public:
  /// The connecting end, over a socket that is connected: makes the memory and hands it over.
  /// Throws kUnavailable.
  static std::unique_ptr<ShmConnection> offer(PrivateDescriptor socket, std::string remote,
                                              pid_t other_process);
  /// The accepting end, which gets the memory with what the other end sends first.
  static std::unique_ptr<ShmConnection> await(PrivateDescriptor socket, std::string remote,
                                              pid_t other_process);
  ~ShmConnection() override;

  IoResult send(const iovec* buffers, int count) override;
  IoResult receive(void* to, size_t size) override;
  IoResult wait_and_receive(void* to, size_t size) override;
  void close_both_ways() override;
  void finish_sending() override;
  Readiness wait(uint32_t interest, std::optional<base::Duration> limit) override;
  const std::string& remote_address() const override { return remote_; }
  std::string way() const override { return "shm"; }
  bool polls_cheaply() const override { return true; }
  DescriptorLane* descriptor_lane() override { return this; }

 protected:
  int descriptor() const override { return socket_.get(); }
  bool is_watched_by_system() const override { return false; }
  Readiness arm(uint32_t interest) override;
  Readiness look(uint32_t interest) const override;
  void take_sign(bool hung_up) override;

 private:
  enum class End { kConnecting, kAccepting };
  /// A socket has room for twice as many: each takes less than a KiB.
  static constexpr int kMostUnreadSigns = 128;
  struct Layout;
  static void check_layout();
  ShmConnection(PrivateDescriptor socket, std::string remote, pid_t other_process);

  // DescriptorLane:
  bool hand_over(const PrivateDescriptor& descriptor) override;
  PrivateDescriptor take_descriptor() override;
  pid_t other_process() const override { return other_process_; }

  void use(SharedMemory memory, PrivateDescriptor lane, End end);
  void hand_over_memory(const PrivateDescriptor& their_lane);
  /// Whether the memory is there. If not, it may just have come.
  bool has_memory() { return knows_memory() || take_memory(); }
  bool knows_memory() const { return has_memory_.load(std::memory_order_acquire); }
  bool take_memory() WEFT_EXCLUDES(mutex_);
  std::string adopt_offered() WEFT_REQUIRES(mutex_);
  IoResult closed() const;
  bool is_over() const {
    return closed_.load(std::memory_order_acquire) || gone_.load(std::memory_order_acquire);
  }
  Readiness ask(uint32_t interest, uint32_t how);
  void give_signs(uint32_t bits);
  void read_signs();
  void notice_death();
  void finish();

  PrivateDescriptor socket_;
  const std::string remote_;
  const pid_t other_process_;
  SharedMemory memory_;
  PrivateDescriptor lane_;  // the socket for descriptors
  std::optional<RingWriter> out_;
  std::optional<RingReader> in_;
  std::atomic<uint32_t>* own_bell_ = nullptr;
  std::atomic<uint32_t>* their_bell_ = nullptr;
  std::atomic<bool> has_memory_{false};  // set once; then the rings and the lane are there
  std::atomic<bool> closed_{false};      // by this end
  std::atomic<bool> gone_{false};        // the other end has closed the socket, or died
  // The poller's: how many signs may have come since it read them. The offer is a sign too, and is
  // read with the first one.
  int unread_signs_ = kMostUnreadSigns;

  mutable base::Mutex mutex_;  // while the memory is awaited
  std::string refusal_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::transport
