// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/group_formation.h"

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const Bytes& value, base::Time) override {
    std::lock_guard lock(mutex_);
    fail_if_told();
    values_[key] = value;
  }
  std::optional<Bytes> find(const std::string& key, base::Time) override {
    std::lock_guard lock(mutex_);
    fail_if_told();
    ++finds_;
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  void remove(const std::string& key, base::Time) override {
    std::lock_guard lock(mutex_);
    fail_if_told();
    values_.erase(key);
  }

  void start_failing() { failing_ = true; }
  int finds() const { return finds_; }

 private:
  void fail_if_told() const {
    if (failing_) throw Error(ErrorCode::kUnavailable, "the store is gone");
  }

  std::mutex mutex_;
  std::map<std::string, Bytes> values_;
  std::atomic<bool> failing_{false};
  std::atomic<int> finds_{0};
};

std::string name_of(int rank) { return "w" + std::to_string(rank); }

MemberRecord record_of(const std::string& name, uint64_t incarnation, int world_size) {
  return {name, "address of " + name, incarnation, 1, world_size, "this host"};
}

std::vector<MemberRecord> form(Store& store, int rank, const MemberRecord& mine,
                               std::chrono::milliseconds limit = 30s) {
  const Invitation invitation{"memory://", rank, mine.world_size, limit};
  return GroupFormation(store, invitation, 0, mine, std::chrono::steady_clock::now() + limit)
      .wait_for_all();
}

std::future<std::vector<MemberRecord>> start(Store& store, int rank, const MemberRecord& mine) {
  return std::async(std::launch::async, [&store, rank, mine] { return form(store, rank, mine); });
}

std::string failure_of(ErrorCode code, Store& store, int rank, const MemberRecord& mine,
                       std::chrono::milliseconds limit) {
  try {
    form(store, rank, mine, limit);
    ADD_FAILURE() << "the group formed";
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.message();
  }
}

// What a member leaves that is killed while it waits, or after the group formed.
void leave(Store& store, int rank, const MemberRecord& record) {
  store.set("weft/0/" + std::to_string(rank), encode_record(record), {});
}
void leave_confirmation(Store& store, int rank, uint64_t incarnations) {
  Bytes bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<uint8_t>(incarnations >> (8 * i)));
  store.set("weft/0/" + std::to_string(rank) + "/confirmed", bytes, {});
}

TEST(GroupFormation, EveryMemberGetsTheRecordsOfAllByRank) {
  MemoryStore store;

  auto b = start(store, 1, record_of("b", 20, 3));
  auto c = start(store, 2, record_of("c", 30, 3));
  const auto records = form(store, 0, record_of("a", 10, 3));

  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2].name, "c");
  EXPECT_EQ(records[1].address, "address of b");
  EXPECT_EQ(b.get()[0].incarnation, 10u);
  EXPECT_EQ(c.get()[1].incarnation, 20u);
}

TEST(GroupFormation, RecordsOfAnEarlierGroupAreNotTakenForMembers) {
  MemoryStore store;
  leave(store, 0, record_of("a", 10, 2));
  leave(store, 1, record_of("b", 20, 2));
  leave_confirmation(store, 0, 20 ^ 10);
  leave_confirmation(store, 1, 20 ^ 10);

  EXPECT_THAT(failure_of(ErrorCode::kUnavailable, store, 1, record_of("b", 21, 2), 50ms),
              HasSubstr("fell silent: 0"));
}

TEST(GroupFormation, TheSuccessorOfAMemberThatIsGoneTakesItsPlace) {
  MemoryStore store;
  leave(store, 0, record_of("a", 10, 2));
  auto b = start(store, 1, record_of("b", 20, 2));
  while (!store.find("weft/0/1/confirmed", {})) std::this_thread::yield();  // b has read of a

  const auto records = form(store, 0, record_of("a", 11, 2));

  EXPECT_EQ(records[1].incarnation, 20u);
  EXPECT_EQ(b.get()[0].incarnation, 11u);
}

// Each of the two first members reads of another member that is gone, and confirms others than the
// other one does.
TEST(GroupFormation, MembersThatReadDifferentRecordsComeToAgree) {
  MemoryStore store;
  leave(store, 2, record_of("c", 30, 4));
  leave(store, 3, record_of("d", 40, 4));
  auto a = start(store, 0, record_of("a", 10, 4));
  while (!store.find("weft/0/0", {})) std::this_thread::yield();
  leave(store, 2, record_of("c", 31, 4));
  auto b = start(store, 1, record_of("b", 20, 4));
  while (!store.find("weft/0/1/confirmed", {})) std::this_thread::yield();

  auto c = start(store, 2, record_of("c", 32, 4));
  const auto records = form(store, 3, record_of("d", 41, 4));

  for (const auto& seen : {a.get(), b.get(), c.get(), records}) {
    EXPECT_EQ(seen[2].incarnation, 32u);
    EXPECT_EQ(seen[3].incarnation, 41u);
  }
}

TEST(GroupFormation, AMemberThatGivesUpWithdraws) {
  MemoryStore store;

  EXPECT_EQ(failure_of(ErrorCode::kUnavailable, store, 1, record_of("b", 20, 3), 20ms),
            "the group of 3 at memory:// did not form within 20 ms; missing ranks: 0, 2");

  EXPECT_EQ(store.find("weft/0/1", {}), std::nullopt);
}

TEST(GroupFormation, AMemberWhoseRankAnotherProcessTookSaysSo) {
  MemoryStore store;
  leave(store, 0, record_of("a", 10, 2));
  auto b = std::async(std::launch::async, [&store] {
    return failure_of(ErrorCode::kUnavailable, store, 1, record_of("b", 20, 2), 500ms);
  });
  while (!store.find("weft/0/1", {})) std::this_thread::yield();
  leave(store, 1, record_of("b", 21, 2));

  EXPECT_THAT(b.get(), HasSubstr("another process joined as rank 1"));
  EXPECT_NE(store.find("weft/0/1", {}), std::nullopt);
}

TEST(GroupFormation, OtherWorldSizesAreRefusedAtOnce) {
  MemoryStore store;
  leave(store, 0, record_of("a", 10, 4));

  EXPECT_THAT(failure_of(ErrorCode::kInvalidArgument, store, 1, record_of("b", 20, 3), 30s),
              HasSubstr("rank 0 says the group has 4 members, rank 1 says 3"));
}

TEST(GroupFormation, AMemberThatRefusesAnotherWithdraws) {
  MemoryStore store;
  leave(store, 0, record_of("a", 10, 4));

  failure_of(ErrorCode::kInvalidArgument, store, 1, record_of("b", 20, 3), 1ms);

  EXPECT_EQ(store.find("weft/0/1", {}), std::nullopt);
  EXPECT_NE(store.find("weft/0/0", {}), std::nullopt);
}

TEST(GroupFormation, ANameThatIsNoneIsRefused) {
  MemoryStore store;
  leave(store, 0, record_of("a/../b", 10, 2));

  EXPECT_THAT(failure_of(ErrorCode::kInvalidArgument, store, 1, record_of("b", 20, 2), 1ms),
              HasSubstr("the record of rank 0 at the rendezvous: a worker's name must match"));
}

TEST(GroupFormation, ARecordThatIsNoneIsRefusedAtOnce) {
  MemoryStore store;
  store.set("weft/0/0", {1, 2, 3}, {});

  EXPECT_THAT(failure_of(ErrorCode::kInvalidArgument, store, 1, record_of("b", 20, 2), 30s),
              HasSubstr("record of rank 0"));
}

TEST(GroupFormation, AStoreThatFailsEndsItAtOnce) {
  MemoryStore store;
  auto b = std::async(std::launch::async, [&store] {
    return failure_of(ErrorCode::kUnavailable, store, 1, record_of("b", 20, 2), 30s);
  });
  while (!store.find("weft/0/1", {})) std::this_thread::yield();
  store.start_failing();

  EXPECT_EQ(b.get(),
            "the group of 2 at memory:// did not form; missing ranks: 0; the store is gone");
}

TEST(GroupFormation, OnlySomeOfManyMissingRanksAreListed) {
  MemoryStore store;

  EXPECT_THAT(failure_of(ErrorCode::kUnavailable, store, 0, record_of("a", 10, 1000), 20ms),
              HasSubstr("31, 32 and 967 more"));
}

TEST(GroupFormation, AMemberOfALargeGroupAsksTheStoreSeldom) {
  MemoryStore store;

  failure_of(ErrorCode::kUnavailable, store, 7, record_of("a", 10, 1000), 200ms);

  // Rank 0 and sometimes another rank in each round, and everybody once at the end.
  EXPECT_LT(store.finds(), 1000 + 200);
}

TEST(GroupFormation, Rank0OfALargeGroupAsksForSomeInEachRound) {
  MemoryStore store;

  failure_of(ErrorCode::kUnavailable, store, 0, record_of("a", 10, 1000), 200ms);

  // Rounds after 0, 1, 3, 7, 15, ... ms: nine at most, and everybody once at the end.
  EXPECT_LT(store.finds(), 9 * 256 + 1000 + 1);
}

TEST(GroupFormation, AllMembersOfALargeGroupTogetherAskTheStoreAFewTimesEach) {
  constexpr int kMembers = 200;
  MemoryStore store;
  std::vector<std::future<std::vector<MemberRecord>>> members;
  for (int rank = kMembers - 1; rank >= 0; --rank)
    members.push_back(
        start(store, rank, record_of(name_of(rank), 100u + unsigned(rank), kMembers)));

  for (auto& each : members) {
    const std::vector<MemberRecord> records = each.get();
    ASSERT_EQ(records.size(), size_t{kMembers});
    EXPECT_EQ(records[150].name, name_of(150));
  }
  // Each member asking for each other's record and confirmation would be 80,000.
  EXPECT_LT(store.finds(), kMembers * 100);
}

TEST(GroupFormation, AMemberOfALargeGroupNamesTheRanksThatRank0Misses) {
  MemoryStore store;
  std::vector<std::future<std::string>> members;
  for (const int rank : {0, 1, 2}) {
    members.push_back(std::async(std::launch::async, [&store, rank] {
      return failure_of(ErrorCode::kUnavailable, store, rank,
                        record_of(name_of(rank), 10u + unsigned(rank), 40), 1500ms);
    }));
  }

  for (auto& each : members) EXPECT_THAT(each.get(), HasSubstr("missing ranks: 3, 4, 5, 6"));
}

TEST(GroupFormation, AMemberOfALargeGroupWhoseRank0IsMissingSaysSo) {
  MemoryStore store;

  EXPECT_THAT(failure_of(ErrorCode::kUnavailable, store, 1, record_of("b", 10, 40), 50ms),
              HasSubstr("missing ranks: 0, 2, 3"));
}

// Rank 0 may be a client in another language that writes neither roll nor notice.
TEST(GroupFormation, ALargeGroupFormsThoughRank0WritesNoRoll) {
  constexpr int kMembers = 40;
  MemoryStore store;
  leave(store, 0, record_of(name_of(0), 100, kMembers));
  uint64_t all = 0;
  for (unsigned rank = 0; rank < kMembers; ++rank) all ^= 100u + rank;
  leave_confirmation(store, 0, all);
  std::vector<std::future<std::vector<MemberRecord>>> members;
  for (int rank = 1; rank < kMembers; ++rank)
    members.push_back(
        start(store, rank, record_of(name_of(rank), 100u + unsigned(rank), kMembers)));

  for (auto& each : members) EXPECT_EQ(each.get().size(), size_t{kMembers});
}

TEST(GroupFormation, TheSuccessorOfAMemberThatIsGoneTakesItsPlaceInALargeGroup) {
  constexpr int kMembers = 40;
  MemoryStore store;
  leave(store, 5, record_of("gone", 5, kMembers));
  std::vector<std::future<std::vector<MemberRecord>>> members;
  for (int rank = 0; rank < kMembers; ++rank) {
    if (rank != 5)
      members.push_back(
          start(store, rank, record_of(name_of(rank), 100u + unsigned(rank), kMembers)));
  }
  std::this_thread::sleep_for(200ms);  // the others have read of the one that is gone
  members.push_back(start(store, 5, record_of("successor", 105, kMembers)));

  for (auto& each : members) EXPECT_EQ(each.get()[5].name, "successor");
}

// An attempt with another world size failed here: what its rank 0 left does not count.
TEST(GroupFormation, TheRollOfAnEarlierAttemptIsNotRead) {
  constexpr int kMembers = 40;
  MemoryStore store;
  std::vector<MemberRecord> earlier;
  for (int rank = 0; rank < 64; ++rank)
    earlier.push_back(record_of("old", 7u + unsigned(rank), 64));
  store.set("weft/0/roll/0", encode_page(earlier), {});
  store.set("weft/0/notice", Bytes{1, 2, 3, 4, 5, 6, 7, 8, 1}, {});
  store.set("weft/0/missing", encode_missing({7, {3}}), {});
  std::vector<std::future<std::vector<MemberRecord>>> members;
  for (int rank = kMembers - 1; rank >= 0; --rank)
    members.push_back(
        start(store, rank, record_of(name_of(rank), 100u + unsigned(rank), kMembers)));

  for (auto& each : members) EXPECT_EQ(each.get()[20].name, name_of(20));
}

}  // namespace
}  // namespace weft::rendezvous
