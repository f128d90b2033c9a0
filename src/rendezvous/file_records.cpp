// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_records.h"

#include <algorithm>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include "weft/error.h"

namespace weft::rendezvous {

namespace {

constexpr size_t kMagic = 8;
constexpr size_t kSizes = 8;  // two numbers before key and value: their sizes
constexpr size_t kChecksum = 4;

void append_u32(Bytes& bytes, uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<uint8_t>(number >> shift));
}

uint32_t u32_at(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 |
         static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

uint32_t checksum_of(const uint8_t* bytes, size_t size) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes, size);
  return crc.checksum();
}

}  // namespace

const std::string& FileRecords::header() {
  static const std::string bytes("WEFTMEET\x01\0\0\0", 12);
  return bytes;
}

Bytes FileRecords::encode(const std::string& key, const Bytes& value) {
  if (key.empty() || key.size() > kKeyLimit || value.size() > kValueLimit) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a rendezvous record has a key of 1 to {} and a value of at most {} "
                            "bytes, not {} and {}",
                            kKeyLimit, kValueLimit, key.size(), value.size()));
  }
  Bytes record;
  record.reserve(kSizes + key.size() + value.size() + kChecksum);
  append_u32(record, static_cast<uint32_t>(key.size()));
  append_u32(record, static_cast<uint32_t>(value.size()));
  record.insert(record.end(), key.begin(), key.end());
  record.insert(record.end(), value.begin(), value.end());
  append_u32(record, checksum_of(record.data(), record.size()));
  return record;
}

void FileRecords::take(std::span<const uint8_t> bytes) {
  rest_.insert(rest_.end(), bytes.begin(), bytes.end());
  const std::span<const uint8_t> all(rest_);
  size_t taken = 0;
  for (;;) {
    const auto left = all.subspan(taken);
    const size_t size = past_header_ ? take_record(left) : take_header(left);
    if (size == 0) break;
    taken += size;
    offset_ += size;
  }
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(taken));
}

// Refuses a byte that cannot belong to the header at once, so that no member waits for a file of
// another kind to grow.
size_t FileRecords::take_header(std::span<const uint8_t> bytes) {
  const std::string& wanted = header();
  for (size_t i = 0; i < std::min(bytes.size(), kMagic); ++i) {
    if (bytes[i] != static_cast<uint8_t>(wanted[i])) {
      throw Error(ErrorCode::kInvalidArgument, "is no rendezvous file");
    }
  }
  if (bytes.size() < wanted.size()) return 0;
  const uint32_t version = u32_at(bytes.data() + kMagic);
  if (version != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("has version {} of the format; this program knows version 1", version));
  }
  past_header_ = true;
  return wanted.size();
}

size_t FileRecords::take_record(std::span<const uint8_t> bytes) {
  if (bytes.size() < kSizes) return 0;
  const size_t key_size = u32_at(bytes.data());
  const size_t value_size = u32_at(bytes.data() + 4);
  if (key_size == 0 || key_size > kKeyLimit || value_size > kValueLimit) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("is damaged: the record at byte {} claims a key of {} and a value of {} "
                    "bytes",
                    offset_, key_size, value_size));
  }
  const size_t covered = kSizes + key_size + value_size;
  if (bytes.size() < covered + kChecksum) return 0;
  if (checksum_of(bytes.data(), covered) != u32_at(bytes.data() + covered)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("is damaged: the checksum of the record at byte {} is wrong", offset_));
  }
  const auto key = bytes.subspan(kSizes, key_size);
  const auto value = bytes.subspan(kSizes + key_size, value_size);
  const std::string name(key.begin(), key.end());
  if (value.empty()) {
    values_.erase(name);
  } else {
    values_[name].assign(value.begin(), value.end());
  }
  return covered + kChecksum;
}

std::optional<Bytes> FileRecords::find(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

}  // namespace weft::rendezvous
