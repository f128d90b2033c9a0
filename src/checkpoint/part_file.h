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
#include "wire/outbox.h"

namespace weft::checkpoint {

struct Entry {
  std::string item;  // the name that the program gave a module or optimizer; "" for anything else
  std::string name;  // within the item
  Record values;
};

/// Size and checksum that a file must have when it is read again.
struct PartSeal {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

class PartWriter {
 public:
  explicit PartWriter(std::string path, std::shared_ptr<Disk> disk = std::make_shared<Disk>());
  void add(const Entry& entry);
  PartSeal commit();

 private:
  void write_out();

  DurableFile file_;
  wire::Outbox outbox_;
  uint64_t entries_ = 0;
};

/// All entries of a part. Reads the file once and decodes the entries as the bytes come. Throws
/// kStorageFailed if the file cannot be read, or if its size or checksum is not that of `seal`.
std::vector<Entry> read_entries(const std::string& path, const PartSeal& seal,
                                std::shared_ptr<Disk> disk = std::make_shared<Disk>());

}  // namespace weft::checkpoint
