// Bytes in, frames out: an incremental decoder without I/O of its own.
//
// The owner reads bytes into prepare() and calls commit(n), then takes frames with next() until
// there is none. Small frames are decoded from one buffer; the bytes of large tensors are read
// straight into their final memory. The buffer grows with the bytes that came, never with the bytes
// that a header announces. Address space for tensors is reserved as announced, but memory is used
// only as bytes come.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "wire/carrier.h"
#include "wire/frame.h"
#include "wire/receive_pool.h"
#include "wire/tensor_entry.h"

namespace weft::wire {

class FrameDecoder {
 public:
  explicit FrameDecoder(std::shared_ptr<ReceivePool> pool);

  /// Where the next bytes go; never empty. The body of the last frame is not valid any more.
  std::span<std::byte> prepare();
  void commit(size_t bytes);

  /// Fills `frame` with the next complete frame. Its body is valid until prepare() is called.
  /// Throws kBadMessage for bytes that are not a frame; the decoder cannot be used afterwards.
  bool next(Frame& frame);
  /// The memory in which the last frame's body lies, if it is that frame's alone (it came in
  /// pieces); else nothing. The body stays valid as long as the memory.
  std::vector<std::byte> take_body();

  /// From now on tensors may be where this carrier has them, which outlives the decoder's use.
  /// Null: their bytes are in the frame.
  void use_carrier(Carrier* carrier) { carrier_ = carrier; }

  // Which frames may come from now on. Any other is refused when its first byte is there.
  /// A hello alone.
  void expect_hello() { expected_ = Expected::kHello; }
  /// The answer to a hello: another hello, or a goodbye.
  void expect_answer_to_hello() { expected_ = Expected::kAnswerToHello; }
  void expect_any() { expected_ = Expected::kAny; }

  /// No byte of a further frame has arrived.
  bool at_frame_boundary() const {
    return begin_ == end_ && !bulk_.is_pending() && !in_pieces_.active;
  }
  size_t buffer_bytes() const { return capacity_ + in_pieces_.body.capacity(); }

 private:
  /// The tensors of a frame: rows, and memory that is being filled.
  struct Bulk {
    std::vector<TensorEntry> rows;
    std::vector<c10::DataPtr> storages;
    size_t row = 0;
    size_t done = 0;  // bytes of that row
    bool begun = false;

    void begin(const FrameDecoder& memory);
    bool is_pending() const { return begun && row < rows.size(); }
    std::span<std::byte> target() const;
    void advance(size_t bytes);
    void assemble(std::vector<at::Tensor>& tensors);
  };
  /// The frame that is coming in pieces.
  struct InPieces {
    bool active = false;
    FrameHeader header{};
    std::vector<std::byte> body;
    size_t body_done = 0;
    size_t table_bytes = 0;  // of the body
    Bulk bulk;
    size_t piece_left = 0;  // bytes of the current piece that have not come
    uint64_t content_left = 0;

    std::span<std::byte> target();
  };
  enum class Reading { kBuffer, kBulk, kPiece };
  enum class Expected : uint8_t { kAny, kHello, kAnswerToHello };

  bool may_come(FrameKind kind) const {
    return expected_ == Expected::kAny || kind == FrameKind::kHello ||
           (expected_ == Expected::kAnswerToHello && kind == FrameKind::kGoodbye);
  }
  size_t buffered() const { return end_ - begin_; }
  c10::DataPtr memory_for(const TensorEntry& row) const;
  void make_room();
  void reserve_for(size_t frame_bytes);
  std::span<const std::byte> read_table(const FrameHeader& header, std::span<const std::byte> body,
                                        std::vector<TensorEntry>& rows) const;
  bool next_ordinary(Frame& frame);
  void emit_small(Frame& frame, const std::byte* bulk);
  void start_bulk(std::span<const std::byte> body);
  void emit_bulk(Frame& frame);
  void start_in_pieces();
  void start_piece();
  void advance_piece(size_t bytes);
  void begin_bulk_if_due();
  void take_buffered_piece();
  void emit_in_pieces(Frame& frame);

  std::shared_ptr<ReceivePool> pool_;
  Carrier* carrier_ = nullptr;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t wanted_ = kHeaderBytes;  // size of the frame that begins at begin_, as far as it is known
  Reading reading_ = Reading::kBuffer;

  // The frame (not one in pieces) whose body is complete and whose bulk is not.
  FrameHeader header_{};
  std::span<const std::byte> body_;
  Bulk bulk_;
  InPieces in_pieces_;
  bool last_came_in_pieces_ = false;
  Expected expected_ = Expected::kAny;
};

}  // namespace weft::wire
