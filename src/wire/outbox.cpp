// SPDX-License-Identifier: BSD-3-Clause
#include "wire/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/room.h"
#include "wire/tensor_entry.h"

namespace weft::wire {

namespace {
constexpr size_t kCopiedTensor = 4096;  // up to this size a copy is cheaper than another iovec

template <typename T>
std::byte* put(std::byte* to, std::span<T> bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  return to + bytes.size();
}
}  // namespace

// A message of whose tensors a carrier takes some: the table that says so, and the tensors whose
// bytes are in the frame.
class Outbox::Carried {
 public:
  Carried(const Encoder& value, Carrier& carrier) {
    const std::span<const std::byte> rows = value.tensor_entries();
    size_t start = 0;
    for (const Encoder::OutgoingTensor& tensor : value.tensors()) {
      const std::span<const std::byte> row = rows.subspan(start, tensor.row_end - start);
      start = tensor.row_end;
      if (const std::optional<Place> place = tensor.staged ? carrier.place(tensor) : std::nullopt) {
        append_carried(table_, row, *place);
        bytes_ += tensor.bytes;
      } else {
        const auto* chars = reinterpret_cast<const char*>(row.data());
        table_.insert(table_.end(), chars, chars + row.size());
        others_.push_back(tensor);
      }
    }
  }
  std::span<const std::byte> table() const { return std::as_bytes(std::span(table_)); }
  std::span<const Encoder::OutgoingTensor> others() const { return others_; }
  /// Of the tensors that the carrier takes.
  size_t bytes() const { return bytes_; }

 private:
  std::vector<char> table_;
  std::vector<Encoder::OutgoingTensor> others_;
  size_t bytes_ = 0;
};

// The bytes of those tensors of a message that are copied.
size_t Outbox::copied_bytes(const Content& content) {
  size_t copied = 0;
  for (const auto& tensor : content.tensors) {
    if (tensor.bytes <= kCopiedTensor) copied += tensor.bytes;
  }
  return copied;
}

std::byte* Outbox::extend(size_t n) {
  const size_t size = small_.size();
  small_.resize(size + n);
  return small_.data() + size;
}

void Outbox::refer_to(const std::byte* data, size_t bytes, const at::Tensor& keep) {
  large_.push_back({small_.size(), data, bytes, keep});
  large_bytes_ += bytes;
}

void Outbox::add(FrameHeader header, std::span<const std::byte> body) {
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::byte* to = extend(kHeaderBytes + body.size());
  std::memcpy(to, &header, kHeaderBytes);
  put(to + kHeaderBytes, body);
  mark_frame();
}

void Outbox::add(FrameHeader header, std::span<const std::byte> prelude, const Encoder& value,
                 LargeFrames large, Carrier* carrier) {
  header.rows = static_cast<uint16_t>(value.tensors().size());
  header.bulk_bytes = value.tensor_bytes();
  if (!carrier || value.tensor_bytes() < kSmallestCarried) {
    add(header, {value.tensor_entries(), prelude, value.payload(), value.tensors()}, large);
    return;
  }
  const Carried carried(value, *carrier);
  header.bulk_bytes -= carried.bytes();
  add(header, {carried.table(), prelude, value.payload(), carried.others()}, large);
}

void Outbox::add(FrameHeader header, const Content& content, LargeFrames large) {
  header.body_bytes =
      static_cast<uint32_t>(content.table.size() + content.prelude.size() + content.payload.size());
  if (large == LargeFrames::kInPieces && header.body_bytes + header.bulk_bytes > kPieceBytes) {
    add_in_pieces(header, content);
  } else {
    add_whole(header, content);
    mark_frame();
  }
}

void Outbox::add_whole(const FrameHeader& header, const Content& content) {
  std::byte* to = extend(kHeaderBytes + header.body_bytes + copied_bytes(content));
  std::memcpy(to, &header, kHeaderBytes);
  to = put(put(put(to + kHeaderBytes, content.table), content.prelude), content.payload);
  for (const auto& tensor : content.tensors) {
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (tensor.bytes <= kCopiedTensor) {
      to = put(to, std::span(data, tensor.bytes));
    } else {
      large_.push_back({static_cast<size_t>(to - small_.data()), data, tensor.bytes, tensor.keep});
      large_bytes_ += tensor.bytes;
    }
  }
}

// Cuts the content of a frame, its body and then its tensors' bytes, into pieces.
class Outbox::PieceWriter {
 public:
  PieceWriter(Outbox& outbox, const FrameHeader& frame)
      : outbox_(outbox), id_(frame.id), left_(frame.body_bytes + frame.bulk_bytes) {}

  template <typename T>
  void copy(std::span<T> bytes) {
    each_part(bytes.size(),
              [&](size_t at, size_t n) { put(outbox_.extend(n), bytes.subspan(at, n)); });
  }
  void refer_to(const std::byte* data, size_t bytes, const at::Tensor& keep) {
    each_part(bytes, [&](size_t at, size_t n) { outbox_.refer_to(data + at, n, keep); });
  }

 private:
  template <typename F>
  void each_part(size_t bytes, const F& write) {
    for (size_t at = 0; at < bytes;) {
      if (left_in_piece_ == 0) begin_piece();
      const size_t n = std::min(bytes - at, left_in_piece_);
      write(at, n);
      at += n;
      left_in_piece_ -= n;
      if (left_in_piece_ == 0) outbox_.mark_cut();
    }
  }
  void begin_piece() {
    left_in_piece_ = std::min<uint64_t>(left_, kPieceBytes);
    left_ -= left_in_piece_;
    FrameHeader header{FrameKind::kPiece};
    header.id = id_;
    header.body_bytes = static_cast<uint32_t>(left_in_piece_);
    std::memcpy(outbox_.extend(kHeaderBytes), &header, kHeaderBytes);
  }

  Outbox& outbox_;
  const uint64_t id_;
  uint64_t left_;  // bytes of the content that come after the current piece
  size_t left_in_piece_ = 0;
};

void Outbox::add_in_pieces(FrameHeader header, const Content& content) {
  if (!empty()) mark_cut();  // after the frames before this one
  const size_t pieces = (header.body_bytes + header.bulk_bytes) / kPieceBytes + 1;
  // More than this frame needs if others wait already: they are not moved for each that comes.
  base::make_room(small_, small_.size() + header.body_bytes + copied_bytes(content) +
                              (pieces + 1) * kHeaderBytes);
  header.flags |= kInPieces;
  std::memcpy(extend(kHeaderBytes), &header, kHeaderBytes);
  mark_cut();
  PieceWriter writer(*this, header);
  writer.copy(content.table);
  writer.copy(content.prelude);
  writer.copy(content.payload);
  for (const auto& tensor : content.tensors) {
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (tensor.bytes <= kCopiedTensor) {
      writer.copy(std::span(data, tensor.bytes));
    } else {
      writer.refer_to(data, tensor.bytes, tensor.keep);
    }
  }
}

int Outbox::gather(iovec* buffers, int limit, Extent extent) const {
  size_t most = SIZE_MAX;
  if (extent == Extent::kToNextCut && next_cut_ < cuts_.size()) most = cuts_[next_cut_] - done_;
  int count = 0;
  const auto give = [&](const std::byte* data, size_t bytes) {
    const size_t n = std::min(bytes, most);
    buffers[count++] = {const_cast<std::byte*>(data), n};
    most -= n;
  };
  size_t at = written_;
  for (size_t i = next_large_; i < large_.size() && count + 1 < limit && most > 0; ++i) {
    const Large& large = large_[i];
    if (large.position > at) {
      give(small_.data() + at, large.position - at);
      at = large.position;
    }
    if (most == 0) return count;
    give(large.data, large.bytes);
    if (count + 1 >= limit && i + 1 < large_.size()) return count;
  }
  if (at < small_.size() && count < limit && most > 0) give(small_.data() + at, small_.size() - at);
  return count;
}

// Called for every frame, so it touches only what is there.
void Outbox::take_all(Outbox& from) {
  small_.swap(from.small_);
  if (!from.large_.empty()) {
    large_.swap(from.large_);
    large_bytes_ = std::exchange(from.large_bytes_, 0);
  }
  if (!from.cuts_.empty()) cuts_.swap(from.cuts_);
}

void Outbox::consume(size_t n) {
  if (n == bytes()) return clear();
  done_ += n;
  while (next_cut_ < cuts_.size() && cuts_[next_cut_] <= done_) ++next_cut_;
  while (n > 0) {
    const bool large_next = next_large_ < large_.size() && large_[next_large_].position == written_;
    if (large_next) {
      Large& large = large_[next_large_];
      const size_t part = std::min(n, large.bytes);
      large.data += part;
      large.bytes -= part;
      large_bytes_ -= part;
      n -= part;
      if (large.bytes == 0) {
        large.keep.reset();
        ++next_large_;
      }
      continue;
    }
    const size_t end = next_large_ < large_.size() ? large_[next_large_].position : small_.size();
    const size_t part = std::min(n, end - written_);
    written_ += part;
    n -= part;
  }
}

void Outbox::clear() {
  if (small_.capacity() > (1 << 20)) {
    small_ = {};
  } else {
    small_.clear();
  }
  large_.clear();
  cuts_.clear();
  written_ = next_large_ = large_bytes_ = next_cut_ = done_ = 0;
}

}  // namespace weft::wire
