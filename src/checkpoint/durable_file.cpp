// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::checkpoint {

void throw_storage(const std::string& what, const std::string& path) {
  throw Error(ErrorCode::kStorageFailed,
              fmt::format("cannot {} {}: {}", what, path, std::generic_category().message(errno)));
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

namespace {
bool is_directory(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}
}  // namespace

void make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0) {
    const int reason = errno;
    if (reason == EEXIST && is_directory(path)) return;
    if (reason != ENOENT || parent_of(path) == path) {
      errno = reason;
      throw_storage("create", path);
    }
    make_directory(parent_of(path));
    if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) throw_storage("create", path);
  }
  sync_directory(parent_of(path));
}

void sync_directory(const std::string& path) {
  const transport::PrivateDescriptor directory(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fsync(directory.get()) != 0) throw_storage("sync", path);
}

DurableFile::DurableFile(std::string path, std::shared_ptr<Disk> disk)
    : path_(std::move(path)),
      unfinished_(path_ + ".unfinished"),
      disk_(std::move(disk)),
      file_(::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (!file_) throw_storage("create", unfinished_);
}

DurableFile::~DurableFile() {
  if (file_ && !committed_) ::unlink(unfinished_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), kBlockBytes));
    const ssize_t written = disk_->write(file_.get(), block);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_storage("write", unfinished_);
    const auto done = static_cast<size_t>(written);
    checksum_.add(block.first(done));
    bytes_ += done;
    bytes = bytes.subspan(done);
  }
}

// Syncs before the rename: the name must never lead to bytes that are not on the disk yet.
void DurableFile::commit() {
  if (disk_->sync(file_.get()) != 0) throw_storage("sync", unfinished_);
  if (::rename(unfinished_.c_str(), path_.c_str()) != 0) throw_storage("rename", unfinished_);
  committed_ = true;
  try {
    sync_directory(parent_of(path_));
  } catch (...) {
    ::unlink(path_.c_str());  // commit() fails, so the file must not be found
    throw;
  }
}

}  // namespace weft::checkpoint
