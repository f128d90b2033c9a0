// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "support/scenario.h"
#include "transport/private_descriptor.h"
#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

base::Time in(base::Duration time) { return std::chrono::steady_clock::now() + time; }

std::string error_text(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "it did not throw";
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.message();
  }
}

class FileStoreTest : public testing::Test {
 protected:
  std::string contents() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  FileStore open() const { return FileStore(path_, in(30s)); }

  const base::TemporaryDirectory directory_{"weft-test"};
  const std::string path_ = directory_.path() + "/store";
};

TEST_F(FileStoreTest, MembersSeeWhatTheOthersSetAndRemove) {
  FileStore first = open(), second = open();

  first.set("a", {1}, in(30s));
  second.set("b", {2}, in(30s));
  EXPECT_EQ(first.find("b", in(30s)), (Bytes{2}));
  EXPECT_EQ(second.find("a", in(30s)), (Bytes{1}));
  second.remove("a", in(30s));

  EXPECT_EQ(first.find("a", in(30s)), std::nullopt);
}

// A lock on one byte of the file, as a member has it.
flock lock_on(off_t byte, short type) {
  flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

TEST_F(FileStoreTest, MembersThatReadLetOneThatWritesGoFirst) {
  FileStore reader = open(), writer = open();
  // Where many look all the time, one of them always holds the lock on the records.
  const transport::PrivateDescriptor others(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  flock shared = lock_on(0, F_RDLCK), none = lock_on(0, F_UNLCK);
  ASSERT_EQ(::fcntl(others.get(), F_OFD_SETLK, &shared), 0);
  std::thread writes([&writer] { writer.set("a", {1}, in(30s)); });
  const bool says_so = test::eventually([&others] {
    flock asked = lock_on(2, F_WRLCK);
    return ::fcntl(others.get(), F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
  });
  EXPECT_TRUE(says_so);

  // The one that writes may be stopped, so those that read do not wait for ever.
  const base::Time start = std::chrono::steady_clock::now();
  EXPECT_EQ(reader.find("a", in(30s)), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);

  ASSERT_EQ(::fcntl(others.get(), F_OFD_SETLK, &none), 0);
  writes.join();
  EXPECT_EQ(reader.find("a", in(30s)), (Bytes{1}));
}

TEST_F(FileStoreTest, AMemberThatComesLaterSeesWhatIsThere) {
  FileStore first = open();
  first.set("a", {1}, in(30s));

  FileStore second = open();

  EXPECT_EQ(second.find("a", in(30s)), (Bytes{1}));
}

TEST_F(FileStoreTest, RecordsOfMembersThatAreAllGoneAreDropped) {
  open().set("a", {1}, in(30s));

  FileStore later = open();

  EXPECT_EQ(later.find("a", in(30s)), std::nullopt);
  EXPECT_EQ(contents(), FileRecords::header());
}

TEST_F(FileStoreTest, ADamagedFileOfMembersThatAreAllGoneIsUsedAgain) {
  open().set("a", {1}, in(30s));
  write("half a rec");

  EXPECT_EQ(open().find("a", in(30s)), std::nullopt);
}

TEST_F(FileStoreTest, IsReadableForThisUserAlone) {
  open();

  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(FileStoreTest, AnEmptyFileThatIsThereAlreadyIsUsed) {
  write("");

  EXPECT_EQ(open().find("a", in(30s)), std::nullopt);
}

TEST_F(FileStoreTest, AFileOfAnotherKindIsRefusedAndLeftAlone) {
  write("precious results\n");

  const std::string text = error_text(ErrorCode::kInvalidArgument, [&] { open(); });

  EXPECT_THAT(text, AllOf(HasSubstr(path_), HasSubstr("no rendezvous file"), HasSubstr("remove")));
  EXPECT_EQ(contents(), "precious results\n");
}

TEST_F(FileStoreTest, AnUnfinishedRecordIsReportedToMembersThatArePresent) {
  FileStore present = open();
  const Bytes record = FileRecords::encode("key", {1, 2, 3});
  write(std::string(record.begin(), record.end() - 2));

  const std::string seen =
      error_text(ErrorCode::kInvalidArgument, [&] { present.find("a", in(30s)); });
  const std::string met = error_text(ErrorCode::kInvalidArgument, [&] { open(); });

  EXPECT_THAT(seen,
              AllOf(HasSubstr(path_), HasSubstr("unfinished record"), HasSubstr("remove it")));
  EXPECT_EQ(met, seen);
}

TEST_F(FileStoreTest, ADamagedRecordIsReported) {
  FileStore present = open();
  Bytes record = FileRecords::encode("key", {1, 2, 3});
  record.back() ^= 1;
  write(std::string(record.begin(), record.end()));

  EXPECT_THAT(error_text(ErrorCode::kInvalidArgument, [&] { present.set("a", {1}, in(30s)); }),
              HasSubstr("checksum"));
}

TEST_F(FileStoreTest, AFileThatIsRemovedOrCutIsNoticed) {
  FileStore cut = open();
  ASSERT_EQ(truncate(path_.c_str(), 3), 0);
  EXPECT_THAT(error_text(ErrorCode::kUnavailable, [&] { cut.find("a", in(30s)); }),
              HasSubstr("cut short"));

  ASSERT_EQ(unlink(path_.c_str()), 0);
  FileStore removed = open();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_THAT(error_text(ErrorCode::kUnavailable, [&] { removed.find("a", in(30s)); }),
              HasSubstr("was removed"));
}

// As a member that is stopped in the middle of an append holds it.
TEST_F(FileStoreTest, ALockThatIsNotReleasedIsWaitedForUntilTheDeadline) {
  FileStore store = open();
  const transport::PrivateDescriptor stopped(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_len = 1;
  ASSERT_EQ(fcntl(stopped.get(), F_OFD_SETLK, &lock), 0);

  EXPECT_THAT(error_text(ErrorCode::kUnavailable, [&] { store.find("a", in(20ms)); }),
              AllOf(HasSubstr(path_), HasSubstr("locked")));
  EXPECT_THAT(error_text(ErrorCode::kUnavailable, [&] { FileStore(path_, in(20ms)); }),
              HasSubstr("locked"));
}

}  // namespace
}  // namespace weft::rendezvous
