// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/pause.h"

namespace weft::rendezvous {

namespace {

// How long a member that reads lets those go first that write; one of them may be stopped.
constexpr auto kPatienceWithWriters = std::chrono::milliseconds(20);

// kInvalidArgument for a problem of the path, which stays; kUnavailable for one of the disk, which
// may pass.
ErrorCode code_of(int reason) {
  switch (reason) {
    case EACCES:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENODEV:
    case ENOENT:
    case ENOTDIR:
    case ENXIO:
    case EPERM:
    case EROFS:
    case ETXTBSY:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kUnavailable;
  }
}

const char* advice_for(int reason) {
  switch (reason) {
    case ENOENT:
    case ENOTDIR:
      return "its folder must exist";
    case EACCES:
    case EPERM:
    case EROFS:
      return "every member must be allowed to read and write it";
    case EDQUOT:
    case EFBIG:
    case ENOSPC:
      return "make room there or choose another path";
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return "choose a folder whose file system has locks, or meet at tcp://host:port";
    default:
      return "choose another path";
  }
}

// What fcntl() is asked for: `type` on the byte that stands for a lock.
struct flock byte_of(off_t lock, int type) {
  struct flock byte = {};
  byte.l_type = static_cast<decltype(byte.l_type)>(type);
  byte.l_whence = SEEK_SET;
  byte.l_start = lock;
  byte.l_len = 1;
  return byte;
}

}  // namespace

// Takes a lock, waiting until the deadline, and holds it for a scope.
class FileStore::Held {
 public:
  Held(FileStore& store, Lock lock, Mode mode, base::Time deadline) : store_(store), lock_(lock) {
    Pause pause(deadline);
    while (!store_.try_lock(lock_, mode)) {
      if (pause.over()) {
        store_.refuse(
            ErrorCode::kUnavailable,
            "stayed locked until the time was up: a member that holds its lock is stopped");
      }
      pause.wait();
    }
  }
  ~Held() { store_.unlock(lock_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  FileStore& store_;
  const Lock lock_;
};

FileStore::FileStore(std::string path, base::Time deadline)
    : path_(std::move(path)), file_(open_file()) {
  become_present(deadline);
  const Held held(*this, Lock::kRecords, Mode::kExclusive, deadline);
  read_on();
  if (!records_.has_header()) {
    write_at_end(FileRecords::header().data(), FileRecords::header().size());
  }
}

// O_NONBLOCK: a path that leads to a pipe or a device must be refused, and open() would wait for
// it.
transport::PrivateDescriptor FileStore::open_file() const {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  // Readable by this user alone: the records contain the secret token of the group.
  transport::PrivateDescriptor file(::open(path_.c_str(), kFlags, 0600));
  if (!file) fail("open", errno);
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) fail("open", errno);
  if (!S_ISREG(found.st_mode)) {
    refuse(ErrorCode::kInvalidArgument, "is no regular file; choose another path");
  }
  return file;
}

void FileStore::become_present(base::Time deadline) {
  Pause pause(deadline);
  for (;;) {
    if (try_lock(Lock::kPresence, Mode::kExclusive)) {
      drop_records_of_others();
      if (try_lock(Lock::kPresence, Mode::kShared)) return;
    } else if (try_lock(Lock::kPresence, Mode::kShared)) {
      return;
    }
    // Another member is dropping records at this moment.
    if (pause.over()) {
      refuse(ErrorCode::kUnavailable, "stayed locked until the time was up; choose another path");
    }
    pause.wait();
  }
}

// Checks the header first: the path may by mistake name another file of the user.
void FileStore::drop_records_of_others() {
  std::array<uint8_t, 16> first;
  const ssize_t size = ::pread(file_.get(), first.data(), FileRecords::header().size(), 0);
  if (size < 0) fail("read", errno);
  try {
    FileRecords().take(std::span(first).first(static_cast<size_t>(size)));
  } catch (const Error& error) {
    refuse(error.code(), error.message() + "; remove it or choose another path");
  }
  if (size > 0 && ::ftruncate(file_.get(), 0) != 0) fail("empty", errno);
}

void FileStore::set(const std::string& key, const Bytes& value, base::Time deadline) {
  if (value.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a rendezvous record needs a value: \"{}\"", key));
  }
  append(key, value, deadline);
}

void FileStore::remove(const std::string& key, base::Time deadline) { append(key, {}, deadline); }

void FileStore::append(const std::string& key, const Bytes& value, base::Time deadline) {
  const Bytes record = FileRecords::encode(key, value);
  const Held wish(*this, Lock::kWriters, Mode::kShared, deadline);
  const Held held(*this, Lock::kRecords, Mode::kExclusive, deadline);
  read_on();
  write_at_end(record.data(), record.size());
}

std::optional<Bytes> FileStore::find(const std::string& key, base::Time deadline) {
  let_writers_go_first(deadline);
  const Held held(*this, Lock::kRecords, Mode::kShared, deadline);
  read_on();
  return records_.find(key);
}

// Members that read share the lock. If they look all the time, one of them always holds it, and a
// member that writes would never get it.
void FileStore::let_writers_go_first(base::Time deadline) {
  const base::Time now = std::chrono::steady_clock::now();
  Pause pause(std::min(deadline, base::later(now, kPatienceWithWriters)));
  while (is_locked_by_others(Lock::kWriters) && !pause.over()) pause.wait();
}

void FileStore::read_on() {
  struct stat now = {};
  if (::fstat(file_.get(), &now) != 0) fail("read", errno);
  if (now.st_nlink == 0) {
    refuse(ErrorCode::kUnavailable, "was removed while members met there; join again");
  }
  if (static_cast<size_t>(now.st_size) < position_) {
    refuse(ErrorCode::kUnavailable, "was cut short while members met there; choose another path");
  }
  std::array<uint8_t, 16'384> piece;
  for (;;) {
    const ssize_t size =
        ::pread(file_.get(), piece.data(), piece.size(), static_cast<off_t>(position_));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail("read", errno);
    if (size == 0) break;
    try {
      records_.take(std::span(piece).first(static_cast<size_t>(size)));
    } catch (const Error& error) {
      refuse(error.code(), error.message() + "; remove it or choose another path");
    }
    position_ += static_cast<size_t>(size);
  }
  // A member that appends holds the lock until the record is whole, so a part of one is an error.
  if (records_.unfinished() > 0) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("is damaged: it ends with {} bytes of an unfinished record; remove it or "
                       "choose another path",
                       records_.unfinished()));
  }
}

void FileStore::write_at_end(const void* bytes, size_t size) {
  const auto* begin = static_cast<const uint8_t*>(bytes);
  size_t written = 0;
  while (written < size) {
    const ssize_t now = ::pwrite(file_.get(), begin + written, size - written,
                                 static_cast<off_t>(position_ + written));
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) {
      const int reason = now < 0 ? errno : ENOSPC;
      // The other members must not find half a record.
      if (::ftruncate(file_.get(), static_cast<off_t>(position_)) != 0) fail("write", errno);
      fail("write", reason);
    }
    written += static_cast<size_t>(now);
  }
  records_.take({begin, size});
  position_ += size;
}

// These locks belong to the open file and not to the process. So several members may live in one
// process, and closing the file elsewhere in the process does not release them.
bool FileStore::try_lock(Lock lock, Mode mode) {
  auto wanted = byte_of(static_cast<off_t>(lock), mode == Mode::kExclusive ? F_WRLCK : F_RDLCK);
  if (::fcntl(file_.get(), F_OFD_SETLK, &wanted) == 0) return true;
  if (errno != EAGAIN && errno != EACCES && errno != EINTR) fail("lock", errno);
  return false;
}

bool FileStore::is_locked_by_others(Lock lock) {
  auto found = byte_of(static_cast<off_t>(lock), F_WRLCK);
  if (::fcntl(file_.get(), F_OFD_GETLK, &found) != 0) fail("lock", errno);
  return found.l_type != F_UNLCK;
}

void FileStore::unlock(Lock lock) noexcept {
  auto released = byte_of(static_cast<off_t>(lock), F_UNLCK);
  ::fcntl(file_.get(), F_OFD_SETLK, &released);
}

void FileStore::fail(const char* doing, int reason) const {
  throw Error(code_of(reason),
              fmt::format("cannot {} the rendezvous file {}: {}; {}", doing, path_,
                          std::generic_category().message(reason), advice_for(reason)));
}

void FileStore::refuse(ErrorCode code, const std::string& what) const {
  throw Error(code, fmt::format("the rendezvous file {} {}", path_, what));
}

}  // namespace weft::rendezvous
