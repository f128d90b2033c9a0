// What every store owes the members that meet there. A store is tested by one small file:
//
//   struct Place {
//     std::unique_ptr<Store> open();   // all of one Place see the same values
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, StoreContract, Place);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "rendezvous/store.h"

namespace weft::rendezvous {

template <typename Place>
class StoreContract : public testing::Test {
 protected:
  static base::Time soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

  Place place_;
  std::unique_ptr<Store> first_ = place_.open();
  std::unique_ptr<Store> second_ = place_.open();
};
TYPED_TEST_SUITE_P(StoreContract);

TYPED_TEST_P(StoreContract, AValueIsFoundByAllOnceItIsSet) {
  EXPECT_EQ(this->first_->find("key", this->soon()), std::nullopt);

  this->first_->set("key", {1, 0, 255}, this->soon());

  EXPECT_EQ(this->first_->find("key", this->soon()), (Bytes{1, 0, 255}));
  EXPECT_EQ(this->second_->find("key", this->soon()), (Bytes{1, 0, 255}));
  EXPECT_EQ(this->second_->find("other", this->soon()), std::nullopt);
}

TYPED_TEST_P(StoreContract, TheLastValueCounts) {
  this->first_->set("key", {1, 2, 3}, this->soon());
  this->second_->set("key", {4}, this->soon());

  EXPECT_EQ(this->first_->find("key", this->soon()), (Bytes{4}));
}

// Not a moment later: who is told of a value by another way finds it in the store.
TYPED_TEST_P(StoreContract, AValueIsThereWhenSetReturns) {
  for (uint8_t i = 0; i < 200; ++i) {
    this->second_->set("key", {i}, this->soon());

    ASSERT_EQ(this->first_->find("key", this->soon()), (Bytes{i}));
  }
}

TYPED_TEST_P(StoreContract, AKeyThatIsRemovedIsGoneAndCanBeSetAgain) {
  this->first_->set("key", {1}, this->soon());
  this->second_->remove("key", this->soon());
  EXPECT_EQ(this->first_->find("key", this->soon()), std::nullopt);
  this->second_->remove("key", this->soon());

  this->first_->set("key", {2}, this->soon());

  EXPECT_EQ(this->second_->find("key", this->soon()), (Bytes{2}));
}

TYPED_TEST_P(StoreContract, LookingForAKeyDoesNotMakeIt) {
  this->first_->find("key", this->soon());

  EXPECT_EQ(this->second_->find("key", this->soon()), std::nullopt);
}

TYPED_TEST_P(StoreContract, TheLargestKeyAndValueAreKept) {
  const std::string key(256, 'k');
  const Bytes value(65'536, 7);

  this->first_->set(key, value, this->soon());

  EXPECT_EQ(this->second_->find(key, this->soon()), value);
}

TYPED_TEST_P(StoreContract, ManyMembersSetAndFindAtTheSameTime) {
  constexpr int kMembers = 8;
  std::vector<std::thread> members;
  for (int i = 0; i < kMembers; ++i) {
    members.emplace_back([this, i] {
      const auto store = this->place_.open();
      store->set("key" + std::to_string(i), {static_cast<uint8_t>(i + 1)}, this->soon());
      for (int other = 0; other < kMembers; ++other) {
        while (!store->find("key" + std::to_string(other), this->soon())) {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& member : members) member.join();

  EXPECT_EQ(this->first_->find("key7", this->soon()), (Bytes{8}));
}

REGISTER_TYPED_TEST_SUITE_P(StoreContract, AValueIsFoundByAllOnceItIsSet, TheLastValueCounts,
                            AValueIsThereWhenSetReturns, AKeyThatIsRemovedIsGoneAndCanBeSetAgain,
                            LookingForAKeyDoesNotMakeIt, TheLargestKeyAndValueAreKept,
                            ManyMembersSetAndFindAtTheSameTime);

}  // namespace weft::rendezvous
