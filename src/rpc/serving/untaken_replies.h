// Replies that one caller has not taken yet, over all of its connections.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>

namespace weft::rpc {

class UntakenReplies {
 public:
  /// While more bytes are unsent, a connection that has some of them pauses.
  static constexpr size_t kUnsentRepliesBeforePause = size_t{64} << 20;

  /// One connection's share. Not thread-safe; the shares of a caller may change at the same time.
  class Share {
   public:
    explicit Share(UntakenReplies& all) : all_(all) {}
    Share(const Share&) = delete;

    /// `bytes`: unsent on this connection now. Returns whether the connection goes on. One without
    /// unsent replies does in any case: nothing would tell it when the others' are taken.
    bool set(size_t bytes) {
      if (bytes != bytes_) {
        all_.bytes_.fetch_add(bytes - bytes_, std::memory_order_relaxed);  // modulo 2^64
        bytes_ = bytes;
      }
      return bytes == 0 || !all_.too_many();
    }

   private:
    UntakenReplies& all_;
    size_t bytes_ = 0;
  };

  bool too_many() const {
    return bytes_.load(std::memory_order_relaxed) > kUnsentRepliesBeforePause;
  }

 private:
  std::atomic<size_t> bytes_{0};
};

}  // namespace weft::rpc
