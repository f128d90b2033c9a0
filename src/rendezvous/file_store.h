// A file in which the members of a group meet: file:///path.
//
// Members append records and read the records of the others. There are two byte-range locks of the
// kernel on the file itself: a member holds one while it reads or appends, and the other for as
// long as it is present. Both end with the process that holds them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/file_records.h"
#include "rendezvous/store.h"
#include "transport/private_descriptor.h"
#include "weft/error.h"

namespace weft::rendezvous {

class FileStore final : public Store {
 public:
  /// Creates the file if there is none, and is present there until this object is destroyed. If no
  /// other member is present, drops the records: they are those of members that are gone.
  ///
  /// Throws kInvalidArgument at once for a path that cannot be a rendezvous file (a folder, a
  /// missing folder, no permission, a file of another kind), kUnavailable for a disk that is full.
  FileStore(std::string path, base::Time deadline);

  void set(const std::string& key, const Bytes& value, base::Time deadline) override;
  std::optional<Bytes> find(const std::string& key, base::Time deadline) override;
  void remove(const std::string& key, base::Time deadline) override;

 private:
  // The byte of the file that a lock covers.
  enum class Lock { kRecords = 0, kPresence = 1, kWriters = 2 };
  enum class Mode { kShared, kExclusive };
  class Held;

  transport::PrivateDescriptor open_file() const;
  void become_present(base::Time deadline);
  void drop_records_of_others();
  void append(const std::string& key, const Bytes& value, base::Time deadline);
  void let_writers_go_first(base::Time deadline);

  // Under the lock on the records:
  void read_on();
  void write_at_end(const void* bytes, size_t size);

  bool try_lock(Lock lock, Mode mode);
  bool is_locked_by_others(Lock lock);
  void unlock(Lock lock) noexcept;
  [[noreturn]] void fail(const char* doing, int reason) const;
  [[noreturn]] void refuse(ErrorCode code, const std::string& what) const;

  const std::string path_;
  transport::PrivateDescriptor file_;
  FileRecords records_;
  size_t position_ = 0;  // bytes of the file that records_ has taken
};

}  // namespace weft::rendezvous
