// The manifest of a checkpoint: the list of its parts. It is written last and makes the checkpoint
// complete.
//
//   weft checkpoint 1
//   save <id>
//   part <worker> <bytes> <checksum>
//   ...
//   end <checksum of the lines above>
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/part_file.h"

namespace weft::checkpoint {

struct Manifest {
  uint64_t save = 0;                      // random: no other attempt's files have it
  std::map<std::string, PartSeal> parts;  // by worker

  std::string text() const;
  /// Throws kStorageFailed, naming `path`, if it is not what text() gave.
  static Manifest parse(const std::string& text, const std::string& path);
};

/// The files of one checkpoint: `directory`/`number`/...
class Folder {
 public:
  Folder(const std::string& directory, uint64_t number);

  const std::string& path() const { return path_; }
  std::string part(const std::string& worker, uint64_t save) const;
  std::string manifest() const { return path_ + "/manifest"; }

  bool is_complete() const;
  void write(const Manifest& manifest) const;
  Manifest read() const;
  /// Removes the files of that attempt to save, and the folder if it is empty then; best effort.
  void discard(uint64_t save) const;
  /// Removes the folder and everything in it that belongs to a checkpoint, the manifest first; best
  /// effort.
  void remove() const;

  /// The numbers of all folders in `directory`, or of the complete ones, ascending; none if there
  /// is no such directory. Throw kStorageFailed if the directory cannot be read.
  static std::vector<uint64_t> numbers(const std::string& directory);
  static std::vector<uint64_t> complete_numbers(const std::string& directory);

 private:
  std::string path_;
};

}  // namespace weft::checkpoint
