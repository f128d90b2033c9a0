// The file that one worker writes of a checkpoint: named records, one after the other.
//
//   16 bytes: "weft part", version, zeros
//   frames of the wire (docs/wire_protocol.md), kind kReply, id 0, 1, 2, ...: an Entry each
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/durable_file.h"
#include "weft/record.h"
#include "wire/frame_decoder.h"
#include "wire/outbox.h"

namespace weft::checkpoint {

struct Entry {
  std::string item;  // the user's name of a module or optimizer; "" of the worker itself
  std::string name;  // within that
  Record values;
};

/// A file as it must be found again.
struct PartSeal {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

class PartWriter {
 public:
  explicit PartWriter(std::string path);
  void add(const Entry& entry);
  PartSeal commit();

 private:
  void write_out();

  DurableFile file_;
  wire::Outbox outbox_;
  uint64_t entries_ = 0;
};

/// All entries are checked against the seal before the first one is given out. Throws
/// kStorageFailed.
class PartReader {
 public:
  PartReader(const std::string& path, const PartSeal& seal);
  /// False at the end.
  bool next(Entry& entry);

 private:
  void verify(const PartSeal& seal);
  void rewind();
  size_t read_some(std::span<std::byte> to);
  [[noreturn]] void fail(const std::string& why) const;

  const std::string path_;
  transport::Descriptor file_;
  std::unique_ptr<wire::FrameDecoder> decoder_;
  uint64_t entries_ = 0;
};

}  // namespace weft::checkpoint
