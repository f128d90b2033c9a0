// Replies that one caller has not taken yet, over all of its connections.
//
// While there are too many, the caller's connections are not read, but for those that have none of
// them, and its calls that wait for a thread go on waiting.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>

namespace weft::rpc {

class UntakenReplies {
 public:
  /// Bytes that are unsent, over all connections.
  static constexpr size_t kUnsentRepliesBeforePause = size_t{64} << 20;

  struct Change {
    bool reads;    // whether the connection is to be read
    bool crossed;  // the limit, in either direction
  };

  /// One connection's share. Not thread-safe; the shares of a caller may change at the same time.
  class Share {
   public:
    explicit Share(UntakenReplies& all) : all_(all) {}
    Share(const Share&) = delete;

    /// `bytes`: unsent on this connection now. A connection without unsent replies is read all the
    /// same: nothing would tell it when the others' are taken.
    Change set(size_t bytes) {
      const size_t change = bytes - bytes_;  // modulo 2^64
      bytes_ = bytes;
      const size_t before = all_.bytes_.fetch_add(change, std::memory_order_acq_rel);
      const bool too_many = exceeds(before + change);
      return {bytes == 0 || !too_many, exceeds(before) != too_many};
    }

   private:
    UntakenReplies& all_;
    size_t bytes_ = 0;
  };

  bool too_many() const { return exceeds(bytes_.load(std::memory_order_acquire)); }

 private:
  static bool exceeds(size_t bytes) { return bytes > kUnsentRepliesBeforePause; }

  std::atomic<size_t> bytes_{0};
};

}  // namespace weft::rpc
