// Invariants by number: docs/rref_protocol.md.
// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_ledger.h"

#include <gtest/gtest.h>

namespace weft::rref {
namespace {

using namespace std::chrono_literals;
using Kind = Step::Kind;

constexpr Worker kOwner = 1, kUser = 2, kOther = 3;
const RRefId kObject{kOwner, kUser, 1, 1};

class OwnerLedgerTest : public testing::Test {
 protected:
  SessionReply say(Worker user, uint64_t sequence, std::vector<Step> steps, uint64_t epoch = 1) {
    return ledger_.apply(user, {epoch, sequence, std::move(steps)}, now_, changes_);
  }
  bool create(const RRefId& id = kObject) { return ledger_.create(id, now_, changes_); }
  bool over(const SessionReply& reply) { return reply.status == SessionReply::Status::kOver; }

  OwnerLedger ledger_{10s};
  OwnerLedger::Changes changes_;
  base::Time now_{1h};
};

TEST_F(OwnerLedgerTest, LivesUntilTheLastHolderLetsGo) {  // I1, I2
  EXPECT_TRUE(create());
  EXPECT_EQ(say(kOther, 1, {{Kind::kRegister, kObject}}).granted, std::vector<uint8_t>{1});
  say(kUser, 1, {{Kind::kRelease, kObject}});
  EXPECT_TRUE(changes_.unheld.empty());
  say(kOther, 2, {{Kind::kRelease, kObject}});
  EXPECT_EQ(changes_.unheld, std::vector{kObject});
  EXPECT_FALSE(ledger_.exists(kObject));
}

TEST_F(OwnerLedgerTest, ARepeatedMessageIsAnsweredAndNotAppliedAgain) {  // I4
  create();
  const std::vector<Step> steps{{Kind::kRegister, kObject}};
  say(kOther, 1, steps);
  say(kOther, 2, {{Kind::kRelease, kObject}});
  say(kUser, 1, {{Kind::kRelease, kObject}});
  EXPECT_TRUE(say(kOther, 1, steps).granted.empty());  // late: it must not register again
  EXPECT_FALSE(ledger_.exists(kObject));
}

TEST_F(OwnerLedgerTest, TheLastMessageGetsTheSameAnswer) {  // I4
  const std::vector<Step> steps{{Kind::kRegister, kObject}};
  EXPECT_EQ(say(kOther, 1, steps).granted, std::vector<uint8_t>{0});
  create();
  EXPECT_EQ(say(kOther, 1, steps).granted, std::vector<uint8_t>{0});
  EXPECT_EQ(say(kOther, 2, steps).granted, std::vector<uint8_t>{1});
}

TEST_F(OwnerLedgerTest, ACreationThatWasGivenUpMustNotRun) {  // I5
  say(kUser, 1, {{Kind::kRelease, kObject}});
  EXPECT_FALSE(create());
  EXPECT_FALSE(ledger_.exists(kObject));
}

TEST_F(OwnerLedgerTest, ACreationRunsOnce) {  // I5
  EXPECT_TRUE(create());
  EXPECT_FALSE(create());
}

TEST_F(OwnerLedgerTest, WhatIsWaitedForFailsWhenItsCreatorGivesUp) {  // I6
  EXPECT_EQ(say(kOther, 1, {{Kind::kRegisterEarly, kObject}}).granted, std::vector<uint8_t>{1});
  say(kUser, 1, {{Kind::kRelease, kObject}});
  EXPECT_EQ(changes_.never_created, std::vector{kObject});
}

TEST_F(OwnerLedgerTest, ALeaseThatRunsOutEndsTheSession) {  // I3
  create();
  EXPECT_EQ(ledger_.next(), now_ + 10s);
  now_ += 5s;
  say(kUser, 1, {});
  now_ += 9s;
  ledger_.expire(now_, changes_);
  EXPECT_TRUE(ledger_.exists(kObject));
  now_ += 1s;
  ledger_.expire(now_, changes_);
  EXPECT_FALSE(ledger_.exists(kObject));
  EXPECT_TRUE(over(say(kUser, 2, {})));
  EXPECT_FALSE(create());                    // of the session that is over
  EXPECT_FALSE(over(say(kUser, 1, {}, 2)));  // a new one may begin
}

TEST_F(OwnerLedgerTest, WhatTheOwnerReachesStays) {
  ledger_.begin_local(kObject);
  EXPECT_EQ(say(kOther, 1, {{Kind::kRegister, kObject}}).granted, std::vector<uint8_t>{1});
  say(kOther, 2, {{Kind::kRelease, kObject}});
  EXPECT_TRUE(ledger_.exists(kObject));
  ledger_.end_local(kObject);
  EXPECT_FALSE(ledger_.exists(kObject));
}

// The creator was idle, begins a new epoch with a creation, and whom it shows the reference to is
// faster than the creation. The end of the old epoch says nothing about it.
TEST_F(OwnerLedgerTest, TheEndOfAnEarlierEpochDoesNotFailWhatIsAwaitedOfALaterOne) {  // I6
  say(kUser, 1, {});
  const RRefId later{kOwner, kUser, 2, 1};
  EXPECT_EQ(say(kOther, 1, {{Kind::kRegisterEarly, later}}).granted, std::vector<uint8_t>{1});
  EXPECT_TRUE(create(later));
  EXPECT_TRUE(changes_.never_created.empty());
}

TEST_F(OwnerLedgerTest, AnEpochThatIsOverDoesNotRefuseWhatALaterOneCreates) {  // I6
  say(kUser, 1, {});
  ledger_.expire(now_ + 10s, changes_);
  const RRefId later{kOwner, kUser, 2, 1};
  EXPECT_EQ(say(kOther, 1, {{Kind::kRegisterEarly, later}}).granted, std::vector<uint8_t>{1});
  EXPECT_TRUE(create(later));
}

TEST_F(OwnerLedgerTest, WhatIsAwaitedFailsWhenItsCreatorIsNeverHeardOf) {  // I6
  say(kOther, 1, {{Kind::kRegisterEarly, kObject}});
  EXPECT_EQ(ledger_.next(), now_ + 10s);
  now_ += 9s;
  say(kOther, 2, {});
  ledger_.expire(now_, changes_);
  EXPECT_TRUE(changes_.never_created.empty());
  now_ += 1s;
  ledger_.expire(now_, changes_);
  EXPECT_EQ(changes_.never_created, std::vector{kObject});
  EXPECT_FALSE(create());  // whoever waited was told
  EXPECT_EQ(ledger_.awaited(), 0u);
}

TEST_F(OwnerLedgerTest, TheOwnerMayAwaitTooWhatItWasShownInAReply) {  // I6
  EXPECT_TRUE(ledger_.await_local(kObject, now_));
  EXPECT_TRUE(create());
  EXPECT_EQ(ledger_.awaited(), 0u);
  const RRefId never{kOwner, kOther, 1, 1};
  EXPECT_TRUE(ledger_.await_local(never, now_));
  ledger_.expire(now_ + 10s, changes_);
  EXPECT_EQ(changes_.never_created, std::vector{never});
  say(kUser, 1, {{Kind::kRelease, {kOwner, kUser, 1, 2}}});
  EXPECT_FALSE(ledger_.await_local({kOwner, kUser, 1, 2}, now_));  // given up
}

TEST_F(OwnerLedgerTest, WhatIsAwaitedStaysAsLongAsItsCreatorIsHeardOf) {  // I6
  say(kOther, 1, {{Kind::kRegisterEarly, kObject}});
  for (uint64_t number = 1; number <= 5; ++number) {
    say(kUser, number, {});
    say(kOther, number + 1, {});
    now_ += 9s;
    ledger_.expire(now_, changes_);
  }
  EXPECT_TRUE(changes_.never_created.empty());
  EXPECT_TRUE(create());
}

TEST_F(OwnerLedgerTest, WhatIsAwaitedFailsWhenItsCreatorGoesOnInALaterEpoch) {  // I6
  say(kOther, 1, {{Kind::kRegisterEarly, kObject}});
  say(kUser, 1, {}, 2);
  EXPECT_EQ(changes_.never_created, std::vector{kObject});
  EXPECT_EQ(say(kOther, 2, {{Kind::kRegisterEarly, {kOwner, kUser, 1, 2}}}).granted,
            std::vector<uint8_t>{0});
}

TEST_F(OwnerLedgerTest, NobodyEndsTheSessionOfAnother) {  // I3
  create();
  say(kOther, 1, {{Kind::kRegisterEarly, {kOwner, kUser, 1000, 1}}});
  EXPECT_FALSE(over(say(kUser, 1, {})));
  EXPECT_TRUE(ledger_.is_held(kObject));
}

TEST_F(OwnerLedgerTest, ARepeatedRegistrationIsNotOneMore) {  // I4
  create();
  say(kOther, 1, {{Kind::kRegister, kObject}});
  EXPECT_EQ(changes_.registered.size(), 1u);
  say(kOther, 1, {{Kind::kRegister, kObject}});
  EXPECT_EQ(changes_.registered.size(), 1u);
}

}  // namespace
}  // namespace weft::rref
