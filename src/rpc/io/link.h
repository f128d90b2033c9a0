// One connection with its frames: an outbox that any thread may fill and one thread at a time
// writes, and a decoder that one thread at a time reads.
//
// There are two lanes. Large frames are written in pieces, and frames of the urgent lane go between
// the pieces: renewals of leases and pings never wait for bulk. Frames of one lane keep their
// order; a frame of the urgent lane may overtake those of the normal one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/spinner.h"
#include "transport/connection.h"
#include "weft/codec.h"
#include "weft/detail/outgoing_call.h"
#include "weft/detail/ref_counted.h"
#include "wire/carrier.h"
#include "wire/features.h"
#include "wire/frame.h"
#include "wire/frame_decoder.h"
#include "wire/outbox.h"

namespace weft::rpc {

class Link : public detail::RefCounted {
 public:
  enum class State { kFine, kBlocked, kBroken };

  Link(std::unique_ptr<transport::Connection> connection, std::shared_ptr<wire::ReceivePool> pool)
      : connection_(std::move(connection)), decoder_(std::move(pool)) {
    why_broken_.reserve(kRoomForReason);
  }

  /// What this end says in its hello.
  static wire::Features offered_features();
  /// `theirs`: what the other end said. Called before open(), or before an accepted link is handed
  /// to the server.
  void agree_on(wire::Features theirs);
  /// The features that both ends have; none before their hellos, constant after agree_on().
  wire::Features features() const { return features_.load(std::memory_order_relaxed); }

  // Sending: any thread.

  /// To be called before queue(), without any lock: brings the bytes of large tensors to where the
  /// other end can use them, if there is such a place. Of what is copied the caller may keep the
  /// originals for a while, so that no deleter of users runs here.
  enum class Originals { kDropped, kKept };
  void stage(Encoder& value, Originals originals) {
    if (value.tensor_bytes() >= wire::kSmallestCarried) stage_tensors(value, originals);
  }

  enum class Lane : uint8_t { kNormal, kUrgent };
  /// The lane for a frame that should not wait: the urgent one while much is unsent, else the
  /// normal one, where frames are written together. Before open() the normal one: the frame waits
  /// for the hello with all others, and what it names is known to the peer only when it arrives.
  Lane lane_for_urgent() const {
    const bool overtakes = unsent_bytes() >= kMuchUnsent && open_.load(std::memory_order_relaxed);
    return overtakes ? Lane::kUrgent : Lane::kNormal;
  }
  /// Weft's own messages up to this size are urgent.
  static constexpr size_t kMostUrgentBytes = 16 * 1024;
  using Position = detail::FramePosition;
  /// Queues a frame. flush() sends it.
  Position queue(const wire::FrameHeader& header, std::span<const std::byte> prelude,
                 const Encoder& value, Lane lane = Lane::kNormal);
  Position queue(const wire::FrameHeader& header, Lane lane = Lane::kNormal) {
    return queue(header, std::span<const std::byte>(), lane);
  }
  Position queue(const wire::FrameHeader& header, std::span<const std::byte> body,
                 Lane lane = Lane::kNormal);
  /// Frames queued before open() wait for it, except those of queue_first().
  void queue_first(const wire::FrameHeader& header, const Encoder& value);
  void open();

  /// Writes the queued frames, and up to kMostPerFlush bytes that other threads queue meanwhile.
  /// Returns at once if another thread writes: that thread writes all.
  /// Leaves frames of the normal lane queued if they are `too_much` bytes or more. kBlocked: call
  /// again when the connection is writable.
  State flush(size_t too_much = SIZE_MAX);
  /// Marks that a queued frame was not written on purpose; the next thread that calls flush() on
  /// this link writes it.
  void defer_flush() { deferred_.store(true, std::memory_order_relaxed); }
  bool has_deferred() const { return deferred_.load(std::memory_order_relaxed); }
  bool has_queued() const { return queued_bytes_.load(std::memory_order_relaxed) != 0; }
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  size_t unsent_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  /// Bytes of calls or replies that the other end has not begun to read: unsent ones, and those
  /// that a carrier has.
  size_t unread_bytes() const {
    wire::Carrier* carrier = carrier_.load(std::memory_order_acquire);
    return unsent_bytes() + (carrier ? carrier->untaken_bytes() : 0);
  }
  /// Bytes that left this process.
  uint64_t sent_bytes() const { return normal_.sent() + urgent_.sent(); }
  /// Whether the frame that ends there has left.
  bool has_sent(const Position& end) const {
    return (end.urgent ? urgent_ : normal_).sent() >= end.byte;
  }
  /// Whether the whole frame may have left: it has, or a thread is handing it to the system right
  /// now. False for a frame of which only a part has left.
  bool may_have_sent(const Position& end) const {
    return (end.urgent ? urgent_ : normal_).offered() >= end.byte;
  }
  /// Whether a thread is handing bytes to the system.
  bool is_offering() const { return normal_.is_offering() || urgent_.is_offering(); }

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
  /// For the thread that receives to poll with.
  base::Spinner& spinner() { return spinner_; }

  bool broken() const;
  std::string why_broken() const;
  void close() { connection_->close_both_ways(); }
  void finish_sending() { connection_->finish_sending(); }
  transport::Connection& connection() { return *connection_; }

 private:
  static constexpr size_t kMuchUnsent = 64 * 1024;
  /// Bytes, besides what it took first, after which a thread leaves what other threads have queued
  /// meanwhile to the loop.
  static constexpr uint64_t kMostPerFlush = 16 << 20;
  static constexpr size_t kRoomForReason = 64;

  /// Frames of one lane that no thread writes yet.
  struct Queue {
    wire::Outbox frames;
    uint64_t end = 0;  // bytes that were ever queued
  };
  /// How far the frames of one lane have got.
  struct LaneState {
    wire::Outbox writing;  // belongs to the writing thread
    std::atomic<uint64_t> sent_bytes{0};
    std::atomic<uint64_t> offered_bytes{0};

    uint64_t sent() const { return sent_bytes.load(std::memory_order_acquire); }
    uint64_t offered() const { return offered_bytes.load(std::memory_order_acquire); }
    bool is_offering() const { return offered() != sent(); }
  };
  void stage_tensors(Encoder& value, Originals originals);
  template <typename Add>
  Position queue_with(Lane lane, const Add& add);
  bool has_frames() const WEFT_REQUIRES(mutex_) {
    return !normal_queue_.frames.empty() || !urgent_queue_.frames.empty();
  }
  bool take_queued(size_t too_much) WEFT_REQUIRES(mutex_);
  LaneState* next_to_write();
  template <typename F>
  State receive_with(const F& read);
  State took(transport::IoResult got);
  State write_out() WEFT_REQUIRES(mutex_);
  transport::IoResult write_once(LaneState& from);
  void note_broken(std::string_view why);

  std::unique_ptr<transport::Connection> connection_;
  std::atomic<wire::Features> features_{};  // calls may be queued while the hello is on its way
  std::unique_ptr<wire::Carrier> own_carrier_;
  std::atomic<wire::Carrier*> carrier_{nullptr};

  mutable base::Mutex mutex_;
  wire::Outbox held_ WEFT_GUARDED_BY(mutex_);  // before open()
  Queue normal_queue_ WEFT_GUARDED_BY(mutex_);
  Queue urgent_queue_ WEFT_GUARDED_BY(mutex_);
  LaneState normal_;
  LaneState urgent_;
  std::atomic<bool> urgent_waits_{false};  // queued there; changed under the mutex
  std::atomic<bool> open_{true};           // changed under the mutex
  bool writing_ WEFT_GUARDED_BY(mutex_) = false;
  std::string why_broken_ WEFT_GUARDED_BY(mutex_);  // has room for the lack of memory
  std::atomic<bool> blocked_{false};
  // Set after queue() has released the mutex, cleared while flush() has it: needs no order.
  std::atomic<bool> deferred_{false};
  std::atomic<size_t> queued_bytes_{0};

  base::Spinner spinner_;
  wire::FrameDecoder decoder_;
  wire::Frame frame_;
  std::atomic<uint64_t> received_bytes_{0};
};

}  // namespace weft::rpc
