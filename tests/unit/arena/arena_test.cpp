// One arena, its owner and its borrowers, in this process and in others.
// SPDX-License-Identifier: BSD-3-Clause
#include "arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arena/foreign_arena.h"
#include "weft/error.h"

namespace weft::arena {
namespace {

using testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

class ArenaTest : public testing::Test {
 protected:
  static size_t pages_of(const Arena& arena) {
    struct stat status {};
    EXPECT_EQ(fstat(arena.descriptor().get(), &status), 0);
    return static_cast<size_t>(status.st_blocks) * 512;
  }
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
      return error.message();
    }
    return "none";
  }

  Arena& arena = *Arena::of_this_process();
};

TEST_F(ArenaTest, MemoryComesFromTheArenaUntilItsLimit) {
  Arena small(8 * kMiB, 2 * kMiB);
  const c10::DataPtr first = small.allocate(kMiB);
  c10::DataPtr second = small.allocate(kMiB);
  EXPECT_TRUE(small.contains(first.get()));
  EXPECT_TRUE(second);
  EXPECT_FALSE(small.allocate(1));
  EXPECT_EQ(small.usage().used_bytes, 2 * kMiB);
}

TEST_F(ArenaTest, ABorrowerReadsInPlaceAndTheBlockIsFreeWhenBothHaveDroppedIt) {
  const size_t before = arena.usage().used_bytes;
  const uint64_t line = arena.begin_line(getpid());
  c10::DataPtr data = arena.allocate(kMiB);
  std::memcpy(data.get(), "hello", 6);
  const Arena::Offer offer = *arena.lend(data.get(), kMiB, line);

  const auto theirs = ForeignArena::map(arena.descriptor());
  c10::DataPtr taken = theirs->take(offer.loan, offer.offset, kMiB);
  EXPECT_STREQ(static_cast<const char*>(taken.get()), "hello");
  EXPECT_NE(taken.get(), data.get());
  data.clear();
  EXPECT_EQ(arena.usage().used_bytes, before + kMiB);
  EXPECT_EQ(arena.usage().loans, 1u);
  taken.clear();
  EXPECT_EQ(arena.usage().used_bytes, before);
  EXPECT_EQ(arena.usage().loans, 0u);
  arena.end_line(line);
  EXPECT_EQ(arena.usage().borrowers, 0u);
}

TEST_F(ArenaTest, WhatWasOfferedOverALineThatEndedCannotBeTaken) {
  const size_t before = arena.usage().used_bytes;
  const uint64_t line = arena.begin_line(getpid());
  c10::DataPtr data = arena.allocate(kMiB);
  const Arena::Offer unread = *arena.lend(data.get(), kMiB, line);
  const Arena::Offer read = *arena.lend(data.get(), kMiB, line);
  const auto theirs = ForeignArena::map(arena.descriptor());
  c10::DataPtr taken = theirs->take(read.loan, read.offset, kMiB);
  data.clear();
  arena.end_line(line);

  EXPECT_THAT(error_of([&] { theirs->take(unread.loan, unread.offset, kMiB); }),
              HasSubstr("not offered"));
  EXPECT_EQ(arena.usage().used_bytes, before + kMiB);  // the taken one is alive
  EXPECT_EQ(arena.usage().borrowers, 1u);
  taken.clear();
  EXPECT_EQ(arena.usage().used_bytes, before);
  EXPECT_EQ(arena.usage().borrowers, 0u);
}

TEST_F(ArenaTest, WhatNobodyHasTakenIsCounted) {
  const uint64_t line = arena.begin_line(getpid());
  const c10::DataPtr data = arena.allocate(kMiB);
  EXPECT_EQ(arena.untaken_bytes(line), 0u);
  const Arena::Offer first = *arena.lend(data.get(), 10, line);
  const Arena::Offer second = *arena.lend(data.get(), 5, line);
  EXPECT_EQ(arena.untaken_bytes(line), 15u);
  const auto theirs = ForeignArena::map(arena.descriptor());
  c10::DataPtr late = theirs->take(second.loan, second.offset, 5);
  EXPECT_EQ(arena.untaken_bytes(line), 15u);  // until those before it are taken
  c10::DataPtr early = theirs->take(first.loan, first.offset, 10);
  EXPECT_EQ(arena.untaken_bytes(line), 0u);
  late.clear();
  early.clear();
  arena.lend(data.get(), 7, line);
  EXPECT_EQ(arena.untaken_bytes(line), 7u);
  arena.end_line(line);
}

TEST_F(ArenaTest, ANumberThatIsLentAnewToAnotherDoesNotCountForTheFirst) {
  const uint64_t quick = arena.begin_line(getpid());
  const uint64_t frozen = arena.begin_line(getpid());
  const c10::DataPtr data = arena.allocate(kMiB);
  const Arena::Offer taken = *arena.lend(data.get(), 10, quick);
  const auto theirs = ForeignArena::map(arena.descriptor());
  theirs->take(taken.loan, taken.offset, 10);  // and gives it back
  EXPECT_EQ(arena.usage().loans, 0u);
  constexpr LoanTicket kNumber = LoanTable::kLoans - 1;
  EXPECT_EQ(arena.lend(data.get(), 5, frozen)->loan & kNumber, taken.loan & kNumber);
  EXPECT_EQ(arena.untaken_bytes(quick), 0u);
  EXPECT_EQ(arena.untaken_bytes(frozen), 5u);
  arena.end_line(quick);
  arena.end_line(frozen);
}

TEST_F(ArenaTest, WhatAPeerSaysAboutALoanIsChecked) {
  const uint64_t line = arena.begin_line(getpid());
  const c10::DataPtr data = arena.allocate(kMiB);
  const Arena::Offer offer = *arena.lend(data.get(), kMiB, line);
  const auto theirs = ForeignArena::map(arena.descriptor());
  struct stat status {};
  fstat(arena.descriptor().get(), &status);
  const auto size = static_cast<uint64_t>(status.st_size);

  for (const uint64_t offset : {uint64_t{0}, ArenaLayout::kDataStart - 1, size, size + 1,
                                size - kMiB + 1, UINT64_MAX, UINT64_MAX - kMiB + 1}) {
    EXPECT_THAT(error_of([&] { theirs->take(offer.loan, offset, kMiB); }),
                HasSubstr("in an arena"));
  }
  EXPECT_THAT(error_of([&] { theirs->take(offer.loan, offer.offset, SIZE_MAX); }),
              HasSubstr("in an arena"));
  for (const uint32_t loan : {offer.loan + 1, LoanTable::kLoans, UINT32_MAX})
    EXPECT_THAT(error_of([&] { theirs->take(loan, offer.offset, kMiB); }),
                HasSubstr("not offered"));
  const c10::DataPtr taken = theirs->take(offer.loan, offer.offset, kMiB);
  EXPECT_THAT(error_of([&] { theirs->take(offer.loan, offer.offset, kMiB); }),
              HasSubstr("not offered"));
  arena.end_line(line);
}

TEST_F(ArenaTest, ANewNeighbourCanMapWhatAnotherOneHasWrittenOver) {
  Arena small(8 * kMiB, 2 * kMiB);
  transport::SharedMemory hostile = transport::SharedMemory::adopt(
      small.descriptor(), static_cast<size_t>(lseek(small.descriptor().get(), 0, SEEK_END)));
  std::fill_n(hostile.data(), 64, std::byte{7});
  EXPECT_THAT(error_of([&] { ForeignArena::map(small.descriptor()); }), HasSubstr("no arena"));

  EXPECT_TRUE(ForeignArena::map(small.descriptor_for_neighbour()));
}

TEST_F(ArenaTest, MemoryThatIsNoArenaIsRefused) {
  EXPECT_THAT(error_of([] { ForeignArena::map({}); }), HasSubstr("not handed over"));
  const transport::PrivateDescriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 4 * kMiB), 0);
  EXPECT_THAT(error_of([&] { ForeignArena::map(loose); }), HasSubstr("could take away"));
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_THAT(error_of([&] { ForeignArena::map(loose); }), HasSubstr("no arena"));
  const transport::PrivateDescriptor small(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_THAT(error_of([&] { ForeignArena::map(small); }), HasSubstr("an arena of 0 bytes"));
}

TEST_F(ArenaTest, AnArenaIsMappedOnceAndAnewWhenItIsNotUsedAnyMore) {
  const transport::PrivateDescriptor copy(dup(arena.descriptor().get()));
  auto first = ForeignArena::map(arena.descriptor());
  EXPECT_EQ(ForeignArena::map(copy), first);
  const std::weak_ptr<ForeignArena> gone = first;
  first = nullptr;
  EXPECT_TRUE(gone.expired());
  EXPECT_TRUE(ForeignArena::map(copy));
}

TEST_F(ArenaTest, PagesThatAreNotUsedAnyMoreAreGivenBack) {
  const size_t before = pages_of(arena);
  c10::DataPtr data = arena.allocate(64 * kMiB);
  std::memset(data.get(), 1, 64 * kMiB);
  EXPECT_GE(pages_of(arena), 64 * kMiB);
  data.clear();
  EXPECT_EQ(arena.tidy(), Arena::Tidied::kInPart);
  EXPECT_GE(pages_of(arena), 64 * kMiB);  // somebody may want them soon
  arena.tidy();
  EXPECT_LE(pages_of(arena), before + 4 * kMiB);
  EXPECT_EQ(arena.tidy(), Arena::Tidied::kWholly);
}

TEST_F(ArenaTest, TheLoansOfADeadProcessEnd) {
  const size_t before = arena.usage().used_bytes;
  const int memory = dup(arena.descriptor().get());  // which the child has too
  int offered[2], taken[2];
  ASSERT_TRUE(pipe(offered) == 0 && pipe(taken) == 0);
  const pid_t child = fork();
  if (child == 0) {
    Arena::Offer offer;
    if (read(offered[0], &offer, sizeof offer) != sizeof offer) _exit(1);
    const auto theirs = ForeignArena::map(transport::PrivateDescriptor(memory));
    const c10::DataPtr data = theirs->take(offer.loan, offer.offset, kMiB);
    if (write(taken[1], data.get(), 6) != 6) _exit(1);
    pause();
    _exit(0);
  }
  const uint64_t line = arena.begin_line(child);
  c10::DataPtr data = arena.allocate(kMiB);
  std::memcpy(data.get(), "hello", 6);
  const Arena::Offer offer = *arena.lend(data.get(), kMiB, line);
  ASSERT_EQ(write(offered[1], &offer, sizeof offer), ssize_t{sizeof offer});
  char heard[6];
  ASSERT_EQ(read(taken[0], heard, 6), 6);
  EXPECT_STREQ(heard, "hello");
  data.clear();
  arena.end_line(line);
  EXPECT_EQ(arena.tidy(), Arena::Tidied::kInPart);
  EXPECT_EQ(arena.usage().used_bytes, before + kMiB);

  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  arena.tidy();
  EXPECT_EQ(arena.usage().used_bytes, before);
  EXPECT_EQ(arena.usage().borrowers, 0u);
  for (const int fd : {memory, offered[0], offered[1], taken[0], taken[1]}) close(fd);
}

TEST_F(ArenaTest, AForkedChildReadsWhatItsParentHasAndFreesNothing) {
  const uint64_t line = arena.begin_line(getpid());
  c10::DataPtr data = arena.allocate(kMiB);
  std::memcpy(data.get(), "parent", 7);
  const Arena::Offer offer = *arena.lend(data.get(), kMiB, line);
  c10::DataPtr taken = ForeignArena::map(arena.descriptor())->take(offer.loan, offer.offset, kMiB);
  const size_t used = arena.usage().used_bytes;
  const pid_t child = fork();
  if (child == 0) {
    bool fine = std::strcmp(static_cast<const char*>(data.get()), "parent") == 0 &&
                std::strcmp(static_cast<const char*>(taken.get()), "parent") == 0;
    data.clear();
    taken.clear();
    Arena* own = Arena::of_this_process();
    fine = fine && own && own != &arena && !arena.allocate(kMiB);
    c10::DataPtr mine = own->allocate(kMiB);
    fine = fine && own->contains(mine.get()) && !arena.contains(mine.get());
    mine.clear();
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(arena.usage().used_bytes, used);
  EXPECT_EQ(arena.usage().loans, 1u);
  taken.clear();
  data.clear();
  arena.end_line(line);
}

TEST_F(ArenaTest, ASmallPartOfALargeBlockIsNotWorthLending) {
  const c10::DataPtr data = arena.allocate(4 * kMiB);
  auto* bytes = static_cast<std::byte*>(data.get());
  EXPECT_TRUE(arena.is_worth_lending(bytes, 4 * kMiB));
  EXPECT_TRUE(arena.is_worth_lending(bytes + 2 * kMiB, 2 * kMiB));
  EXPECT_FALSE(arena.is_worth_lending(bytes, kMiB));
  EXPECT_FALSE(arena.is_worth_lending(bytes + 3 * kMiB, 2 * kMiB));
}

}  // namespace
}  // namespace weft::arena
