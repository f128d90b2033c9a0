// One connection with its frames: an outbox that any thread may fill and one thread at a time
// writes, and a decoder that one thread at a time reads.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/spinner.h"
#include "transport/connection.h"
#include "weft/codec.h"
#include "weft/detail/ref_counted.h"
#include "wire/frame.h"
#include "wire/frame_decoder.h"
#include "wire/outbox.h"

namespace weft::rpc {

class Link : public detail::RefCounted {
 public:
  enum class State { kFine, kBlocked, kBroken };

  Link(std::unique_ptr<transport::Connection> connection, std::shared_ptr<wire::ReceivePool> pool)
      : connection_(std::move(connection)), decoder_(std::move(pool)) {}

  // Sending: any thread.

  /// Queues a frame; returns where it ends in the stream of bytes. flush() sends it.
  uint64_t queue(const wire::FrameHeader& header, std::span<const std::byte> prelude,
                 const Encoder& value);
  uint64_t queue(const wire::FrameHeader& header, std::span<const std::byte> body = {});
  /// Frames queued before open() wait for it, except those of queue_first().
  void queue_first(const wire::FrameHeader& header, const Encoder& value);
  void open();

  /// Writes what is queued, also what others queue meanwhile. Returns at once if another thread
  /// writes: that one goes on. Leaves what others queue meanwhile if it is `too_much` bytes or
  /// more. kBlocked: call again when the descriptor is writable.
  State flush(size_t too_much = SIZE_MAX);
  /// After queue(): the frame is left to others, who find it by has_left(), until the next flush().
  void leave() { left_.store(true, std::memory_order_relaxed); }
  bool has_left() const { return left_.load(std::memory_order_relaxed); }
  bool has_queued() const { return queued_bytes_.load(std::memory_order_relaxed) != 0; }
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  size_t unsent_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  /// Bytes that left this process.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_acquire); }
  /// Bytes that may have left: those that did, and those a thread is handing to the system.
  uint64_t offered_bytes() const { return offered_bytes_.load(std::memory_order_acquire); }

  // Receiving: one thread at a time, its owner sees to that.

  /// Reads once. kFine: bytes came; kBlocked: none are there; kBroken: see why_broken().
  State receive();
  /// Like receive(), after waiting up to transport::kLongestReceive for bytes.
  State wait_and_receive();
  /// Throws kBadMessage.
  bool next_frame() { return decoder_.next(frame_); }
  wire::Frame& frame() { return frame_; }
  wire::FrameDecoder& decoder() { return decoder_; }
  bool within_frame() const { return !decoder_.at_frame_boundary(); }
  uint64_t received_bytes() const { return received_bytes_.load(std::memory_order_relaxed); }
  /// For whoever receives to poll with.
  base::Spinner& spinner() { return spinner_; }

  bool broken() const;
  std::string why_broken() const;
  void close() { connection_->close_both_ways(); }
  void finish_sending() { connection_->finish_sending(); }
  transport::Connection& connection() { return *connection_; }
  int descriptor() const { return connection_->descriptor(); }

 private:
  State took(transport::IoResult got);
  State write_out(std::unique_lock<std::mutex>& lock);
  void note_broken(std::string why);

  std::unique_ptr<transport::Connection> connection_;

  mutable std::mutex mutex_;
  wire::Outbox held_;  // before open()
  wire::Outbox queued_;
  wire::Outbox writing_out_;  // belongs to the writing thread
  bool open_ = true;
  bool writing_ = false;
  uint64_t stream_end_ = 0;
  std::string why_broken_;
  std::atomic<bool> blocked_{false};
  std::atomic<bool> left_{false};  // set after, cleared in a section of the mutex: needs no order
  std::atomic<size_t> queued_bytes_{0};
  std::atomic<uint64_t> sent_bytes_{0};
  std::atomic<uint64_t> offered_bytes_{0};

  base::Spinner spinner_;
  wire::FrameDecoder decoder_;
  wire::Frame frame_;
  std::atomic<uint64_t> received_bytes_{0};
};

}  // namespace weft::rpc
