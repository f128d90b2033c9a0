// A private directory that is removed with its owner.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

namespace weft::base {

class TemporaryDirectory {
 public:
  /// In TMPDIR, else /tmp; readable by this user alone. Throws std::system_error.
  explicit TemporaryDirectory(const std::string& prefix = "weft");
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace weft::base
