// Bytes in, frames out: an incremental decoder without I/O of its own.
//
// The owner reads into prepare() and says commit(n), then takes frames with next() until there is
// none. Small frames are decoded from one buffer; the bytes of large tensors are read straight into
// their final memory. Memory grows with bytes received, never with bytes announced.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "wire/frame.h"
#include "wire/receive_pool.h"
#include "wire/tensor_entry.h"

namespace weft::wire {

class FrameDecoder {
 public:
  explicit FrameDecoder(std::shared_ptr<ReceivePool> pool);

  /// Where the next bytes go; never empty. Ends the life of the last frame's body.
  std::span<std::byte> prepare();
  void commit(size_t bytes);

  /// Fills `frame` with the next complete frame. Its body is valid until prepare() is called.
  /// Throws kBadMessage for bytes that are no frame; the decoder is then of no more use.
  bool next(Frame& frame);

  /// From now on anything but a hello is refused by its first bytes, whatever its size.
  void expect_hello() { hello_only_ = true; }
  void expect_any() { hello_only_ = false; }

  /// No byte of a further frame has arrived.
  bool at_frame_boundary() const { return begin_ == end_ && !bulk_pending_; }
  size_t buffer_bytes() const { return capacity_; }

 private:
  size_t buffered() const { return end_ - begin_; }
  void reserve_for(size_t frame_bytes);
  std::span<const std::byte> read_table(const FrameHeader& header, std::span<const std::byte> body);
  void emit_small(Frame& frame, const std::byte* bulk);
  void start_bulk(std::span<const std::byte> body);
  void emit_bulk(Frame& frame);
  void assemble(Frame& frame);

  std::shared_ptr<ReceivePool> pool_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;
  size_t end_ = 0;

  // The frame being received, once its body is complete and its bulk is not.
  FrameHeader header_{};
  std::span<const std::byte> body_;
  std::vector<TensorEntry> rows_;
  std::vector<c10::DataPtr> storages_;
  bool bulk_pending_ = false;
  bool hello_only_ = false;
  size_t bulk_row_ = 0;
  size_t bulk_done_ = 0;  // bytes of that row
};

}  // namespace weft::wire
