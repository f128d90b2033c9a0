// SPDX-License-Identifier: BSD-3-Clause
#include "base/temporary_directory.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include <cerrno>
#include <system_error>

namespace weft::base {

namespace {
int remove_entry(const char* path, const struct stat*, int, FTW*) { return ::remove(path); }
}  // namespace

TemporaryDirectory::TemporaryDirectory(const std::string& prefix) {
  const char* parent = ::getenv("TMPDIR");
  path_ = std::string(parent && *parent == '/' ? parent : "/tmp") + "/" + prefix + "-XXXXXX";
  if (!::mkdtemp(path_.data())) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot make a temporary directory " + path_);
  }
}

// Ignores failures: all that is left then is a small directory. std::filesystem::remove_all cannot
// be used: libtorch 2.11 exports a broken copy of it, which the linker finds first.
TemporaryDirectory::~TemporaryDirectory() {
  ::nftw(path_.c_str(), &remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

}  // namespace weft::base
