// SPDX-License-Identifier: BSD-3-Clause
#include "transport/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace weft::transport {

namespace {

// Counters and requests are stored and loaded in one order for both ends (seq_cst): of an end that
// advances its counter and then looks for a request, and one that makes a request and then looks at
// the counter, one sees what the other did.
constexpr auto kOneOrder = std::memory_order_seq_cst;

uint32_t take(std::atomic<uint32_t>& request) {
  return request.load(kOneOrder) == 0 ? 0 : request.exchange(0, kOneOrder);
}

// Sets the bits unless all of them are set already.
void ask(std::atomic<uint32_t>& request, uint32_t bits) {
  if ((request.load(kOneOrder) & bits) != bits) request.fetch_or(bits, kOneOrder);
}

}  // namespace

// --- the writing end -------------------------------------------------------------------------

RingResult RingWriter::write(const iovec* buffers, int count) {
  uint64_t written = written_.load(std::memory_order_relaxed);
  size_t wanted = 0;
  for (int i = 0; i < count; ++i) wanted += buffers[i].iov_len;
  // The reader changes its counter all the time; to look at it costs both ends a cache miss.
  if (ring_.bytes - (written - known_read_) < wanted && !look_how_far_reader_got())
    return {RingState::kDamaged};
  size_t room = ring_.bytes - (written - known_read_);
  if (room == 0) return {RingState::kEmpty};
  const size_t had = room;
  for (int i = 0; i < count && room > 0; ++i) {
    const size_t n = std::min(buffers[i].iov_len, room);
    if (n == 0) continue;
    const auto* from = static_cast<const std::byte*>(buffers[i].iov_base);
    const size_t at = written & (ring_.bytes - 1);
    const size_t first = std::min(n, ring_.bytes - at);
    std::memcpy(ring_.data + at, from, first);
    if (n > first) std::memcpy(ring_.data, from + first, n - first);
    written += n;
    room -= n;
  }
  written_.store(written, std::memory_order_relaxed);
  ring_.header->written.store(written, kOneOrder);
  return {RingState::kFine, had - room};
}

// False: it cannot have got there.
bool RingWriter::look_how_far_reader_got() {
  const uint64_t read = ring_.header->read.load(std::memory_order_acquire);
  if (written_.load(std::memory_order_relaxed) - read > ring_.bytes) return false;
  known_read_ = read;
  return true;
}

uint32_t RingWriter::take_request() { return take(ring_.header->reader_asks); }

bool RingWriter::has_room() const {
  const uint64_t read = ring_.header->read.load(kOneOrder);
  return written_.load(std::memory_order_relaxed) - read != ring_.bytes;
}

bool RingWriter::ask_for_room(uint32_t bits) {
  ask(ring_.header->writer_asks, bits);
  if (!has_room()) return true;
  ring_.header->writer_asks.fetch_and(~bits, std::memory_order_relaxed);
  return false;
}

// --- the reading end -------------------------------------------------------------------------

RingResult RingReader::read(std::byte* to, size_t size) {
  const uint64_t read = read_.load(std::memory_order_relaxed);
  // In this order: what was written before it was finished is read.
  const bool finished = ring_.header->finished.load(std::memory_order_acquire) != 0;
  const uint64_t there = ring_.header->written.load(std::memory_order_acquire) - read;
  if (there > ring_.bytes) return {RingState::kDamaged};
  if (there == 0) return {finished ? RingState::kFinished : RingState::kEmpty};
  const size_t n = std::min<uint64_t>(size, there);
  if (n == 0) return {RingState::kFine};
  const size_t at = read & (ring_.bytes - 1);
  const size_t first = std::min(n, ring_.bytes - at);
  std::memcpy(to, ring_.data + at, first);
  if (n > first) std::memcpy(to + first, ring_.data, n - first);
  read_.store(read + n, std::memory_order_relaxed);
  ring_.header->read.store(read + n, kOneOrder);
  return {RingState::kFine, n};
}

uint32_t RingReader::take_request() { return take(ring_.header->writer_asks); }

bool RingReader::has_bytes() const {
  return ring_.header->finished.load(kOneOrder) != 0 ||
         ring_.header->written.load(kOneOrder) != read_.load(std::memory_order_relaxed);
}

bool RingReader::ask_for_bytes(uint32_t bits) {
  ask(ring_.header->reader_asks, bits);
  if (!has_bytes()) return true;
  ring_.header->reader_asks.fetch_and(~bits, std::memory_order_relaxed);
  return false;
}

}  // namespace weft::transport
