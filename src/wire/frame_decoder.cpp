// SPDX-License-Identifier: BSD-3-Clause
#include "wire/frame_decoder.h"

#include <algorithm>
#include <cstring>

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

std::span<std::byte> FrameDecoder::prepare() {
  if (bulk_pending_) {
    const size_t left = rows_[bulk_row_].bytes - bulk_done_;
    return {static_cast<std::byte*>(storages_[bulk_row_].get()) + bulk_done_, left};
  }
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
  // Doubling as the buffer fills: what is allocated stays within twice what was received.
  if (end_ == capacity_) reserve_for(2 * capacity_);
  return {buffer_.get() + end_, capacity_ - end_};
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
  if (!bulk_pending_) {
    end_ += bytes;
    return;
  }
  bulk_done_ += bytes;
  while (bulk_row_ < rows_.size() && bulk_done_ == rows_[bulk_row_].bytes) {
    ++bulk_row_;
    bulk_done_ = 0;
  }
  bulk_pending_ = bulk_row_ < rows_.size();
}

bool FrameDecoder::next(Frame& frame) {
  if (bulk_pending_) return false;
  if (!storages_.empty()) {
    emit_bulk(frame);
    return true;
  }
  if (hello_only_ && buffered() > 0 &&
      static_cast<uint8_t>(buffer_[begin_]) != static_cast<uint8_t>(FrameKind::kHello)) {
    Decoder::fail(
        fmt::format("no hello: the first byte is {:#04x}", static_cast<uint8_t>(buffer_[begin_])));
  }
  if (buffered() < kHeaderBytes) return false;
  header_ = read_header(buffer_.get() + begin_);
  const bool small = header_.bulk_bytes <= kSmallBulk;
  const size_t wanted = kHeaderBytes + header_.body_bytes + (small ? header_.bulk_bytes : 0);
  if (buffered() < wanted) return false;

  const std::byte* start = buffer_.get() + begin_ + kHeaderBytes;
  const std::span<const std::byte> body = read_table(header_, {start, header_.body_bytes});
  begin_ += wanted;
  if (!small) {
    start_bulk(body);
    if (bulk_pending_) return false;
    emit_bulk(frame);
    return true;
  }
  frame.body = body;
  emit_small(frame, start + header_.body_bytes);
  return true;
}

std::span<const std::byte> FrameDecoder::read_table(const FrameHeader& header,
                                                    std::span<const std::byte> body) {
  rows_.clear();
  uint64_t bytes = 0;
  for (size_t i = 0; i < header.tensors; ++i) {
    rows_.push_back(read_entry(body));
    bytes += rows_.back().bytes;
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
  if (rows_.empty()) return;
  for (const TensorEntry& row : rows_) {
    c10::DataPtr memory;
    if (!(row.flags & (kUndefined | kSparse))) {
      memory = pool_->allocate(row.bytes);
      if (row.bytes) std::memcpy(memory.get(), bulk, row.bytes);
    }
    bulk += row.bytes;
    storages_.push_back(std::move(memory));
  }
  assemble(frame);
}

void FrameDecoder::start_bulk(std::span<const std::byte> body) {
  body_ = body;
  for (const TensorEntry& row : rows_) {
    storages_.push_back(row.flags & (kUndefined | kSparse) ? c10::DataPtr()
                                                           : pool_->allocate(row.bytes));
  }
  bulk_row_ = bulk_done_ = 0;
  bulk_pending_ = true;
  commit(0);  // skips leading rows without bytes
  while (bulk_pending_ && buffered() > 0) {
    const size_t left = rows_[bulk_row_].bytes - bulk_done_;
    const size_t n = std::min(left, buffered());
    std::memcpy(static_cast<std::byte*>(storages_[bulk_row_].get()) + bulk_done_,
                buffer_.get() + begin_, n);
    begin_ += n;
    commit(n);
  }
}

void FrameDecoder::emit_bulk(Frame& frame) {
  frame.header = header_;
  frame.body = body_;
  assemble(frame);
}

void FrameDecoder::assemble(Frame& frame) {
  frame.tensors.clear();
  std::vector<c10::DataPtr> storages;
  storages.swap(storages_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const TensorEntry& row = rows_[i];
    if (!(row.flags & kSparse)) {
      frame.tensors.push_back(make_received_tensor(row, std::move(storages[i])));
      continue;
    }
    if (i + 2 >= rows_.size()) Decoder::fail("sparse tensor without its indices and values");
    frame.tensors.push_back(
        make_received_sparse(row, make_received_tensor(rows_[i + 1], std::move(storages[i + 1])),
                             make_received_tensor(rows_[i + 2], std::move(storages[i + 2]))));
    i += 2;
  }
  // The vector's memory is kept for the next frame.
  storages.clear();
  storages_.swap(storages);
}

}  // namespace weft::wire
