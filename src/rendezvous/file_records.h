// The bytes of a rendezvous file: a header, then records that are only ever appended.
//
// docs/rendezvous.md describes the format; a client in another language is written from there.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "rendezvous/store.h"

namespace weft::rendezvous {

/// The values that a rendezvous file holds, decoded from its bytes as they come. A failed take()
/// leaves it unusable.
class FileRecords {
 public:
  static constexpr size_t kKeyLimit = 256;
  static constexpr size_t kValueLimit = 65'536;
  static const std::string& header();

  /// The record that gives `value` to `key`; an empty value removes the key.
  static Bytes encode(const std::string& key, const Bytes& value);

  /// Takes the next bytes of the file, any number at a time. Throws kInvalidArgument for bytes that
  /// do not have the format; the text says which, without the file's name.
  void take(std::span<const uint8_t> bytes);

  std::optional<Bytes> find(const std::string& key) const;
  /// Bytes at the end that are not a whole header or record.
  size_t unfinished() const { return rest_.size(); }
  bool has_header() const { return past_header_; }

 private:
  // Bytes of the header or record at the beginning of `bytes`; zero if it is not complete.
  size_t take_header(std::span<const uint8_t> bytes);
  size_t take_record(std::span<const uint8_t> bytes);

  std::map<std::string, Bytes> values_;
  Bytes rest_;
  uint64_t offset_ = 0;  // where in the file the first byte is that is not taken
  bool past_header_ = false;
};

}  // namespace weft::rendezvous
