// A stream of bytes through memory that two processes share: one end writes, the other reads.
//
// The two ends tell each other through two counters, of the bytes ever written and ever read, how
// far they have got. An end that is about to sleep makes a request: then the other end, as soon as
// there is something to read or room to write, takes the request away and gives a sign. An end that
// is awake costs the other one no system call. A request is a set of bits, one for each way in
// which threads of that end sleep; what they mean is the owner's affair.
//
// Nothing that the other end writes is believed. Each end keeps its own counter to itself, checks
// the other one's, and copies bytes out before anybody looks at them. A counter that cannot be is
// an error, after which the ring is not used any more.
//
// | an end that                                            | and the other end that              |
// | ------------------------------------------------------ | ----------------------------------- |
// | copies bytes, advances `written`, looks for a request  | makes a request, looks at `written` |
// | copies bytes out, advances `read`, looks for a request | makes a request, looks at `read`    |
//
// One of the two sees what the other did, in whatever order they come.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::transport {

/// The shared part of a ring. The bytes follow elsewhere in the same memory.
struct RingHeader {
  alignas(128) std::atomic<uint64_t> written;  // by the writer, like the next
  std::atomic<uint32_t> finished;              // nothing more will be written
  alignas(128) std::atomic<uint64_t> read;     // by the reader
  // Requests for a sign: set by the end that asks, taken away by the other one.
  alignas(128) std::atomic<uint32_t> reader_asks;
  alignas(128) std::atomic<uint32_t> writer_asks;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// `bytes` is a power of two. The memory is all zeros when the ring is new.
struct RingMemory {
  RingHeader* header = nullptr;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

enum class RingState {
  kFine,
  kEmpty,     // nothing to read, or no room
  kFinished,  // nothing to read, and nothing more will come
  kDamaged,   // the other end has written what cannot be
};

struct RingResult {
  RingState state;
  size_t bytes = 0;
};

/// One thread at a time; has_room() and ask_for_room() may run beside write().
class RingWriter {
 public:
  explicit RingWriter(const RingMemory& memory) : ring_(memory) {}

  /// Writes what there is room for, from the front.
  RingResult write(const iovec* buffers, int count);
  /// Nothing follows.
  void finish() { ring_.header->finished.store(1, std::memory_order_seq_cst); }

  /// To be called after write() or finish(): the bits with which the reader asks for a sign.
  uint32_t take_request();
  /// Asks for a sign when there is room. False: there is room, or the ring is damaged.
  bool ask_for_room(uint32_t bits);
  /// Whether write() would not give kEmpty.
  bool has_room() const;

 private:
  bool look_how_far_reader_got();

  RingMemory ring_;
  std::atomic<uint64_t> written_{0};  // this end's own, which nobody else can change
  uint64_t known_read_ = 0;           // looked at when there is no room otherwise
};

/// One thread at a time; has_bytes() and ask_for_bytes() may run beside read().
class RingReader {
 public:
  explicit RingReader(const RingMemory& memory) : ring_(memory) {}

  RingResult read(std::byte* to, size_t size);

  /// To be called after read(), also if it gave nothing, and before this end sleeps: the bits with
  /// which the writer asks for a sign.
  uint32_t take_request();
  /// Asks for a sign when there is something. False: there is, or it is finished or damaged.
  bool ask_for_bytes(uint32_t bits);
  /// Whether read() would not give kEmpty.
  bool has_bytes() const;

 private:
  RingMemory ring_;
  std::atomic<uint64_t> read_{0};  // this end's own, which nobody else can change
};

}  // namespace weft::transport
