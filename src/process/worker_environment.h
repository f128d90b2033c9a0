// What workers of one group find in their environment.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::process {

// A fresh directory that only this user can enter, gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// This process's environment plus rank, world size and a place to meet: WEFT_RENDEZVOUS for Weft,
// MASTER_ADDR and MASTER_PORT for process groups. A place that is set already is kept, so that
// several groups can join into one world. The place exists as long as this object.
class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers);

  // As execve takes it: NAME=value.
  std::vector<std::string> of_rank(int rank) const;

 private:
  void set_unless_present(const char* name, const std::string& value);

  int workers_;
  std::optional<TemporaryDirectory> meeting_place_;
  std::vector<std::string> shared_;
};

}  // namespace weft::process
