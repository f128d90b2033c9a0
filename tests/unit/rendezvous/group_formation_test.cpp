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

  failure_of(ErrorCode::kUnavailable, store, 0, record_of("a", 10, 1000), 200ms);

  // One rank in each round, and everybody once at the end.
  EXPECT_LT(store.finds(), 1000 + 200);
}

}  // namespace
}  // namespace weft::rendezvous
