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
  uint64_t save = 0;                      // a random number in the names of this attempt's files
  std::map<std::string, PartSeal> parts;  // by worker

  std::string text() const;
  /// Throws kStorageFailed, naming `path`, if `text` is not the text() of a manifest.
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
  /// Removes the files that the attempt `save` has written, and the folder if it is empty then.
  /// Ignores errors.
  void discard(uint64_t save) const;
  /// Removes the files of the checkpoint, the manifest first, and the folder if it is empty then.
  /// Ignores errors.
  void remove() const;

  // The numbers of all folders in `directory`, or of the complete ones, ascending; none if there is
  // no such directory. Throw kStorageFailed if it cannot be read.
  static std::vector<uint64_t> numbers(const std::string& directory);
  static std::vector<uint64_t> complete_numbers(const std::string& directory);

 private:
  std::string path_;
};

}  // namespace weft::checkpoint
