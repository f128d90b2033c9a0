// SPDX-License-Identifier: BSD-3-Clause
#include "arena/loans.h"

#include <memory>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::arena {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Loans : public testing::Test {
 protected:
  std::vector<uint32_t> collect() {
    std::vector<uint32_t> all;
    lender.collect([&all](uint32_t loan) { all.push_back(loan); });
    return all;
  }

  std::unique_ptr<LoanTable> table{new LoanTable{}};
  Lender lender{*table};
};

TEST_F(Loans, AnOfferIsTakenOnceAndComesBack) {
  const uint32_t loan = *lender.offer();
  EXPECT_TRUE(take_loan(*table, lender.ticket(loan)));
  EXPECT_FALSE(take_loan(*table, lender.ticket(loan)));
  EXPECT_THAT(collect(), IsEmpty());
  give_back_loan(*table, lender.ticket(loan));
  EXPECT_THAT(collect(), ElementsAre(loan));
  EXPECT_THAT(collect(), IsEmpty());
  EXPECT_FALSE(lender.is_lent(loan));
}

TEST_F(Loans, WhatWasNotOfferedCannotBeTaken) {
  EXPECT_FALSE(take_loan(*table, 0));
  EXPECT_FALSE(take_loan(*table, LoanTable::kLoans));
  EXPECT_FALSE(take_loan(*table, UINT32_MAX));
}

TEST_F(Loans, AnOfferIsWithdrawnOrTakenNotBoth) {
  const uint32_t first = *lender.offer();
  EXPECT_TRUE(lender.withdraw(first));
  EXPECT_FALSE(take_loan(*table, lender.ticket(first)));

  const uint32_t second = *lender.offer();
  EXPECT_TRUE(take_loan(*table, lender.ticket(second)));
  EXPECT_FALSE(lender.withdraw(second));
  EXPECT_TRUE(lender.is_lent(second));
}

// A frame may be read long after its connection was given up.
TEST_F(Loans, WhoComesLateToAnOfferDoesNotTakeTheNextOne) {
  const uint32_t loan = *lender.offer();
  const LoanTicket old = lender.ticket(loan);
  ASSERT_TRUE(lender.withdraw(loan));
  ASSERT_EQ(lender.offer(), loan);

  EXPECT_FALSE(take_loan(*table, old));
  EXPECT_TRUE(lender.is_offered(loan));
  EXPECT_TRUE(take_loan(*table, lender.ticket(loan)));

  lender.end(loan);
  ASSERT_EQ(lender.offer(), loan);
  give_back_loan(*table, old);
  EXPECT_THAT(collect(), IsEmpty());
  EXPECT_TRUE(lender.is_offered(loan));
}

TEST_F(Loans, TheLoanOfADeadBorrowerEnds) {
  const uint32_t loan = *lender.offer();
  take_loan(*table, lender.ticket(loan));
  give_back_loan(*table, lender.ticket(loan));  // the last it did
  lender.end(loan);
  EXPECT_THAT(collect(), IsEmpty());
  EXPECT_FALSE(lender.is_lent(loan));
}

TEST_F(Loans, AllNumbersAreUsedBeforeThereIsNone) {
  std::set<uint32_t> numbers;
  for (uint32_t i = 0; i < LoanTable::kLoans; ++i) numbers.insert(*lender.offer());
  EXPECT_EQ(numbers.size(), LoanTable::kLoans);
  EXPECT_EQ(*numbers.rbegin(), LoanTable::kLoans - 1);
  EXPECT_FALSE(lender.offer());
  for (const uint32_t loan : {0u, 63u, 64u, 4095u, 4096u, LoanTable::kLoans - 1}) {
    ASSERT_TRUE(take_loan(*table, lender.ticket(loan)));
    give_back_loan(*table, lender.ticket(loan));
  }
  EXPECT_THAT(collect(), ElementsAre(0, 63, 64, 4095, 4096, LoanTable::kLoans - 1));
  EXPECT_TRUE(lender.offer());
}

TEST_F(Loans, NonsenseInTheSharedPartEndsLoansButNothingElse) {
  std::mt19937_64 random(7);
  std::set<uint32_t> lent;
  auto* words = reinterpret_cast<std::atomic<uint32_t>*>(table.get());
  for (int i = 0; i < 200'000; ++i) {
    const size_t word = random() % 3 == 0 ? random() % 200 : random() % (sizeof(LoanTable) / 4);
    words[word].store(random() % 2 ? static_cast<uint32_t>(random()) : random() % 4);
    if (random() % 4 == 0) {
      const auto loan = lender.offer();
      ASSERT_TRUE(!loan || lent.insert(*loan).second);
    }
    if (random() % 8 == 0) {
      lender.collect([&](uint32_t loan) { ASSERT_EQ(lent.erase(loan), 1u); });
    }
    if (random() % 8 == 0 && !lent.empty()) {
      const uint32_t loan = *lent.begin();
      if (random() % 2) {
        lender.end(loan);
        lent.erase(loan);
      } else if (lender.withdraw(loan)) {
        lent.erase(loan);
      }
    }
  }
  for (uint32_t loan = 0; loan < lender.limit(); ++loan)
    ASSERT_EQ(lender.is_lent(loan), lent.count(loan) == 1);
}

// Borrowers give back while the lender collects: nothing is lost, nothing comes twice.
TEST_F(Loans, WhatThreadsGiveBackIsCollectedOnce) {
  constexpr size_t kThreads = 4;
  constexpr int kRounds = 20'000;
  std::array<std::atomic<int64_t>, kThreads> handed;  // a loan + 1 for each thread; 0: none
  for (auto& each : handed) each = 0;
  std::atomic<bool> over{false};
  std::vector<std::thread> borrowers;
  for (size_t t = 0; t < kThreads; ++t) {
    borrowers.emplace_back([&, t] {
      while (!over) {
        const int64_t loan = handed[t].exchange(0);
        if (loan == 0) {
          std::this_thread::yield();
          continue;
        }
        ASSERT_TRUE(take_loan(*table, static_cast<uint32_t>(loan - 1)));
        give_back_loan(*table, static_cast<uint32_t>(loan - 1));
      }
    });
  }
  int offered = 0, collected = 0;
  while (collected < kRounds) {
    for (auto& each : handed) {
      if (offered < kRounds && each == 0) {
        each = int64_t{lender.ticket(*lender.offer())} + 1;
        ++offered;
      }
    }
    const int before = collected;
    lender.collect([&](uint32_t) { ++collected; });
    if (collected == before) std::this_thread::yield();
  }
  over = true;
  for (auto& each : borrowers) each.join();
  EXPECT_THAT(collect(), IsEmpty());
  EXPECT_EQ(collected, kRounds);
  EXPECT_LE(lender.limit(), 3 * kThreads);
}

}  // namespace
}  // namespace weft::arena
