// SPDX-License-Identifier: BSD-3-Clause
#include "wire/frame_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/received_tensor.h"

namespace weft::wire {

namespace {
constexpr size_t kBuffer = 64 * 1024;
constexpr size_t kSmallBulk = 16 * 1024;  // up to here a copy is cheaper than a further system call
}  // namespace

FrameDecoder::FrameDecoder(std::shared_ptr<ReceivePool> pool)
    : pool_(std::move(pool)), buffer_(new std::byte[kBuffer]), capacity_(kBuffer) {}

// --- memory ----------------------------------------------------------------------------------

// Where the bytes of a tensor go, or are already.
c10::DataPtr FrameDecoder::memory_for(const TensorEntry& row) const {
  if (row.flags & (kUndefined | kSparse)) return {};
  if (!(row.flags & kCarried)) return pool_->allocate(row.bytes);
  c10::DataPtr memory = carrier_->take(row.place, row.bytes);
  const size_t element = c10::elementSize(row.dtype);
  if (reinterpret_cast<uintptr_t>(memory.get()) % element != 0)
    Decoder::fail(fmt::format("a carried tensor that is not aligned to its {} bytes", element));
  return memory;
}

void FrameDecoder::Bulk::begin(const FrameDecoder& memory) {
  for (const TensorEntry& each : rows) storages.push_back(memory.memory_for(each));
  row = done = 0;
  begun = true;
  advance(0);  // skips leading rows without bytes
}

std::span<std::byte> FrameDecoder::Bulk::target() const {
  return {static_cast<std::byte*>(storages[row].get()) + done, rows[row].bytes_in_frame() - done};
}

void FrameDecoder::Bulk::advance(size_t bytes) {
  done += bytes;
  while (row < rows.size() && done == rows[row].bytes_in_frame()) {
    ++row;
    done = 0;
  }
}

// Where the next bytes of the current piece go.
std::span<std::byte> FrameDecoder::InPieces::target() {
  if (body_done == header.body_bytes) {
    const std::span<std::byte> into = bulk.target();
    return into.first(std::min(into.size(), piece_left));
  }
  // The body grows by doubling, like the buffer: a piece that is announced may never come.
  const size_t n =
      std::min({size_t{header.body_bytes} - body_done, piece_left, std::max(kBuffer, body_done)});
  if (body.size() < body_done + n) body.resize(body_done + n);
  return {body.data() + body_done, n};
}

std::span<std::byte> FrameDecoder::prepare() {
  if (bulk_.is_pending()) {
    reading_ = Reading::kBulk;
    return bulk_.target();
  }
  if (!in_pieces_.active && !in_pieces_.body.empty()) in_pieces_.body = {};  // its frame was taken
  if (in_pieces_.piece_left > 0 && begin_ == end_) {
    reading_ = Reading::kPiece;
    return in_pieces_.target();
  }
  reading_ = Reading::kBuffer;
  make_room();
  size_t room = capacity_ - end_;
  // Read no further than the next header: it is most likely that of the next piece, whose content
  // goes straight to its final memory.
  if (in_pieces_.active) room = std::min(room, wanted_ - buffered());
  return {buffer_.get() + end_, room};
}

void FrameDecoder::make_room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (capacity_ > kBuffer) {  // a large body came and went
      buffer_.reset(new std::byte[kBuffer]);
      capacity_ = kBuffer;
    }
  } else if (begin_ > 0 && (capacity_ - end_ < capacity_ / 4)) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  // The buffer doubles when it is full, so at most twice the received bytes are allocated.
  if (end_ == capacity_) reserve_for(2 * capacity_);
}

void FrameDecoder::reserve_for(size_t bytes) {
  std::unique_ptr<std::byte[]> larger(new std::byte[bytes]);
  std::memcpy(larger.get(), buffer_.get() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
  buffer_ = std::move(larger);
  capacity_ = bytes;
}

void FrameDecoder::commit(size_t bytes) {
  switch (reading_) {
    case Reading::kBuffer:
      end_ += bytes;
      break;
    case Reading::kBulk:
      bulk_.advance(bytes);
      break;
    case Reading::kPiece:
      advance_piece(bytes);
      break;
  }
}

// --- frames ----------------------------------------------------------------------------------

bool FrameDecoder::next(Frame& frame) {
  last_came_in_pieces_ = false;
  if (bulk_.is_pending()) return false;
  if (bulk_.begun) {
    emit_bulk(frame);
    return true;
  }
  for (;;) {
    if (in_pieces_.active) {
      begin_bulk_if_due();
      take_buffered_piece();
      if (in_pieces_.content_left == 0) {
        emit_in_pieces(frame);
        return true;
      }
      if (in_pieces_.piece_left > 0) return false;
    }
    if (buffered() > 0 && !may_come(static_cast<FrameKind>(buffer_[begin_]))) {
      Decoder::fail(fmt::format("no hello: the first byte is {:#04x}",
                                static_cast<uint8_t>(buffer_[begin_])));
    }
    wanted_ = kHeaderBytes;
    if (buffered() < kHeaderBytes) return false;
    header_ = read_header(buffer_.get() + begin_);
    if (header_.kind == FrameKind::kPiece) {
      start_piece();
    } else if (header_.flags & kInPieces) {
      start_in_pieces();
    } else {
      return next_ordinary(frame);
    }
  }
}

bool FrameDecoder::next_ordinary(Frame& frame) {
  const bool small = header_.bulk_bytes <= kSmallBulk;
  wanted_ = kHeaderBytes + header_.body_bytes + (small ? header_.bulk_bytes : 0);
  if (buffered() < wanted_) return false;

  const std::byte* start = buffer_.get() + begin_ + kHeaderBytes;
  const std::span<const std::byte> body =
      read_table(header_, {start, header_.body_bytes}, bulk_.rows);
  begin_ += wanted_;
  if (!small) {
    start_bulk(body);
    if (bulk_.is_pending()) return false;
    emit_bulk(frame);
    return true;
  }
  frame.body = body;
  emit_small(frame, start + header_.body_bytes);
  return true;
}

std::span<const std::byte> FrameDecoder::read_table(const FrameHeader& header,
                                                    std::span<const std::byte> body,
                                                    std::vector<TensorEntry>& rows) const {
  rows.clear();
  uint64_t bytes = 0;
  bool of_sparse = false;
  for (size_t i = 0; i < header.rows; ++i) {
    rows.push_back(read_entry(body));
    const TensorEntry& row = rows.back();
    // Indices are checked once, so nobody may be able to change them afterwards.
    if (row.flags & kCarried && (!carrier_ || of_sparse))
      Decoder::fail("a tensor whose bytes are not in the frame");
    of_sparse = row.flags & kSparse;
    bytes += row.bytes_in_frame();
    if (bytes > header.bulk_bytes) break;
  }
  if (bytes != header.bulk_bytes) {
    Decoder::fail(fmt::format("frame has {} bytes of tensors, its table says {} or more",
                              header.bulk_bytes, bytes));
  }
  return body;
}

void FrameDecoder::emit_small(Frame& frame, const std::byte* bulk) {
  frame.header = header_;
  frame.tensors.clear();
  if (bulk_.rows.empty()) return;
  for (const TensorEntry& row : bulk_.rows) {
    c10::DataPtr memory = memory_for(row);
    const uint64_t bytes = row.bytes_in_frame();
    if (bytes) std::memcpy(memory.get(), bulk, bytes);
    bulk += bytes;
    bulk_.storages.push_back(std::move(memory));
  }
  bulk_.assemble(frame.tensors);
}

void FrameDecoder::start_bulk(std::span<const std::byte> body) {
  body_ = body;
  bulk_.begin(*this);
  while (bulk_.is_pending() && buffered() > 0) {
    const std::span<std::byte> into = bulk_.target();
    const size_t n = std::min(into.size(), buffered());
    std::memcpy(into.data(), buffer_.get() + begin_, n);
    begin_ += n;
    bulk_.advance(n);
  }
}

void FrameDecoder::emit_bulk(Frame& frame) {
  frame.header = header_;
  frame.body = body_;
  bulk_.assemble(frame.tensors);
}

void FrameDecoder::Bulk::assemble(std::vector<at::Tensor>& tensors) {
  tensors.clear();
  begun = false;
  std::vector<c10::DataPtr> memory;
  memory.swap(storages);
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorEntry& each = rows[i];
    if (!(each.flags & kSparse)) {
      tensors.push_back(make_received_tensor(each, std::move(memory[i])));
      continue;
    }
    if (i + 2 >= rows.size()) Decoder::fail("sparse tensor without its indices and values");
    tensors.push_back(
        make_received_sparse(each, make_received_tensor(rows[i + 1], std::move(memory[i + 1])),
                             make_received_tensor(rows[i + 2], std::move(memory[i + 2]))));
    i += 2;
  }
  // Keep the memory of the vector for the next frame.
  memory.clear();
  storages.swap(memory);
}

// --- pieces ----------------------------------------------------------------------------------

void FrameDecoder::start_in_pieces() {
  if (in_pieces_.active) Decoder::fail("a frame in pieces begins within another");
  if (header_.body_bytes + header_.bulk_bytes == 0) Decoder::fail("a frame in pieces without any");
  begin_ += kHeaderBytes;
  in_pieces_ = {};
  in_pieces_.active = true;
  in_pieces_.header = header_;
  in_pieces_.content_left = header_.body_bytes + header_.bulk_bytes;
  in_pieces_.header.flags &= static_cast<uint8_t>(~kInPieces);
}

void FrameDecoder::start_piece() {
  if (!in_pieces_.active || header_.id != in_pieces_.header.id) {
    Decoder::fail(fmt::format("a piece of a frame {} that has not begun", header_.id));
  }
  if (header_.body_bytes == 0 || header_.body_bytes > in_pieces_.content_left) {
    Decoder::fail(fmt::format("a piece of {} bytes of a frame of which {} are left",
                              header_.body_bytes, in_pieces_.content_left));
  }
  begin_ += kHeaderBytes;
  in_pieces_.piece_left = header_.body_bytes;
}

void FrameDecoder::advance_piece(size_t bytes) {
  InPieces& large = in_pieces_;
  large.piece_left -= bytes;
  large.content_left -= bytes;
  if (large.body_done < large.header.body_bytes) {
    large.body_done += bytes;
  } else {
    large.bulk.advance(bytes);
  }
}

// If the body is complete, reads its tensor table, which says where the other bytes go.
void FrameDecoder::begin_bulk_if_due() {
  InPieces& large = in_pieces_;
  if (large.bulk.begun || large.body_done < large.header.body_bytes) return;
  const std::span<const std::byte> body(large.body.data(), large.body_done);
  large.table_bytes = body.size() - read_table(large.header, body, large.bulk.rows).size();
  large.bulk.begin(*this);
}

void FrameDecoder::take_buffered_piece() {
  while (in_pieces_.piece_left > 0 && buffered() > 0) {
    const std::span<std::byte> into = in_pieces_.target();
    const size_t n = std::min(into.size(), buffered());
    std::memcpy(into.data(), buffer_.get() + begin_, n);
    begin_ += n;
    advance_piece(n);
    begin_bulk_if_due();
  }
}

void FrameDecoder::emit_in_pieces(Frame& frame) {
  InPieces& large = in_pieces_;
  frame.header = large.header;
  frame.body = std::span<const std::byte>(large.body.data(), large.body_done);
  frame.body = frame.body.subspan(large.table_bytes);
  large.bulk.assemble(frame.tensors);
  large.active = false;
  last_came_in_pieces_ = true;
}

std::vector<std::byte> FrameDecoder::take_body() {
  return last_came_in_pieces_ ? std::exchange(in_pieces_.body, {}) : std::vector<std::byte>();
}

}  // namespace weft::wire
