// Frames that wait to be written. Small frames are copied into one buffer; the bytes of large
// tensors are not copied.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/codec.h"
#include "wire/carrier.h"
#include "wire/frame.h"

namespace weft::wire {

/// How a frame of more than kPieceBytes is written.
enum class LargeFrames { kWhole, kInPieces };

class Outbox {
 public:
  /// Adds a frame with `prelude`, the encoder's payload and its tensors, except the bytes of those
  /// that `carrier` takes. Fills in the sizes in `header`.
  void add(FrameHeader header, std::span<const std::byte> prelude, const Encoder& value,
           LargeFrames large = LargeFrames::kWhole, Carrier* carrier = nullptr);
  void add(FrameHeader header, std::span<const std::byte> body = {});

  bool empty() const { return bytes() == 0; }
  size_t bytes() const { return small_.size() - written_ + large_bytes_; }

  /// Whether gather() gives all bytes or stops at the next cut.
  enum class Extent { kAll, kToNextCut };
  /// Fills in up to `limit` buffers that are to be written next; returns how many.
  int gather(iovec* buffers, int limit, Extent extent = Extent::kAll) const;
  /// To be called when the first `n` bytes that gather() gave were written.
  void consume(size_t n);
  void clear();
  /// Takes all frames of `from`, of which nothing was written. To be called while this is empty.
  void take_all(Outbox& from);

  /// Whether frames of another outbox may be written now: between two frames, or two pieces of one.
  bool at_cut() const { return next_cut_ == 0 ? done_ == 0 : cuts_[next_cut_ - 1] == done_; }

 private:
  static constexpr size_t kCutBytes = 16 * 1024;

  class PieceWriter;
  class Carried;
  /// The parts of a frame in their order.
  struct Content {
    std::span<const std::byte> table, prelude, payload;
    std::span<const Encoder::OutgoingTensor> tensors;
  };
  struct Large {
    size_t position;  // in small_; the data goes out before the byte at this index
    const std::byte* data;
    size_t bytes;
    at::Tensor keep;
  };
  std::byte* extend(size_t n);
  void refer_to(const std::byte* data, size_t bytes, const at::Tensor& keep);
  void add(FrameHeader header, const Content& content, LargeFrames large);
  void add_whole(const FrameHeader& header, const Content& content);
  void add_in_pieces(FrameHeader header, const Content& content);
  static size_t copied_bytes(const Content& content);
  void mark_cut() { cuts_.push_back(done_ + bytes()); }
  /// Marks a cut after a whole frame, but only if the last cut is far enough away.
  void mark_frame() {
    if (done_ + bytes() - (cuts_.empty() ? 0 : cuts_.back()) >= kCutBytes) mark_cut();
  }

  // Invariant: [written_, small_.size()) and large_[next_large_..] are what is left to write.
  std::vector<std::byte> small_;
  size_t written_ = 0;
  std::vector<Large> large_;
  size_t next_large_ = 0;
  size_t large_bytes_ = 0;

  // Where frames and pieces end, in bytes since the outbox was last empty; the end of the last one
  // need not be among them. cuts_[next_cut_..] lie ahead of the `done_` bytes that were written.
  std::vector<size_t> cuts_;
  size_t next_cut_ = 0;
  size_t done_ = 0;
};

}  // namespace weft::wire
