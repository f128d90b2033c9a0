// Invariants by number: docs/rref_protocol.md.
// SPDX-License-Identifier: BSD-3-Clause
#include "rref/holdings.h"

#include <gtest/gtest.h>

namespace weft::rref {
namespace {

using namespace std::chrono_literals;
using Kind = Step::Kind;
using State = Holdings::State;
using Outcome = Holdings::CreationOutcome;

constexpr Worker kSelf = 1, kOwner = 2, kOther = 3;
const RRefId kShown{kOwner, kOther, 1, 5};  // made by another, shown to us

class HoldingsTest : public testing::Test {
 protected:
  static SessionReply applied(std::vector<uint8_t> granted = {}) {
    return {SessionReply::Status::kApplied, std::move(granted)};
  }
  void answer(const SessionMessage& message, const SessionReply& reply) {
    holdings_.on_reply(kOwner, message.epoch, message.sequence, reply, now_, changes_);
  }
  // What is said next, which must be something.
  SessionMessage say() {
    auto message = holdings_.next_message(kOwner, now_);
    EXPECT_TRUE(message);
    return message.value_or(SessionMessage{});
  }
  bool has_to_say() { return !holdings_.owners_to_tell(now_).empty(); }

  Holdings holdings_{kSelf, 9s};
  Holdings::Changes changes_;
  base::Time now_{1h};
};

TEST_F(HoldingsTest, WhatArrivesIsRegisteredBeforeItIsHeld) {
  EXPECT_EQ(holdings_.arrive(kShown, false, now_), State::kRegistering);
  const SessionMessage message = say();
  EXPECT_EQ(message.steps, (std::vector<Step>{{Kind::kRegister, kShown}}));
  EXPECT_EQ(holdings_.state(kShown), State::kRegistering);
  answer(message, applied({1}));
  EXPECT_EQ(changes_.held, std::vector{kShown});
  EXPECT_EQ(holdings_.arrive(kShown, false, now_), State::kHeld);  // no need to ask again
  EXPECT_FALSE(has_to_say());
}

TEST_F(HoldingsTest, OfAnObjectThatMayNotExistYetTheOwnerIsTold) {
  holdings_.arrive(kShown, true, now_);
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRegisterEarly, kShown}}));
}

// The first repetition comes at once, further ones after a pause.
TEST_F(HoldingsTest, AMessageIsKnownToHaveBeenRepeatedUntilItIsAnswered) {
  holdings_.arrive(kShown, false, now_);
  const SessionMessage message = say();
  EXPECT_FALSE(holdings_.was_repeated(kOwner));
  holdings_.repeat(kOwner, now_);
  EXPECT_TRUE(holdings_.was_repeated(kOwner));

  answer(message, applied({1}));
  EXPECT_FALSE(holdings_.was_repeated(kOwner));
  now_ += 9s;
  say();  // the lease is renewed
  EXPECT_FALSE(holdings_.was_repeated(kOwner));
}

// Creations may be long on their way, behind large calls.
TEST_F(HoldingsTest, CreationsDoNotTakeThePlaceOfRenewals) {
  const RRefId first = holdings_.create(kOwner, now_);
  holdings_.on_created(first, Outcome::kAnswered, changes_);
  now_ += 2s;
  holdings_.create(kOwner, now_);
  EXPECT_FALSE(has_to_say());

  now_ += 1s;
  EXPECT_TRUE(has_to_say());
  EXPECT_TRUE(say().steps.empty());
}

TEST_F(HoldingsTest, AMessageIsRepeatedWhenItIsTimeForThat) {
  holdings_.arrive(kShown, false, now_);
  const SessionMessage message = say();
  EXPECT_FALSE(has_to_say());

  holdings_.repeat_later(kOwner, now_ + 50ms);
  EXPECT_FALSE(has_to_say());
  EXPECT_EQ(holdings_.next_message(kOwner, now_), std::nullopt);
  EXPECT_EQ(holdings_.next(), now_ + 50ms);

  now_ += 50ms;
  EXPECT_TRUE(has_to_say());
  EXPECT_EQ(say().sequence, message.sequence);
  EXPECT_FALSE(has_to_say());
  answer(message, applied({1}));
  EXPECT_EQ(holdings_.state(kShown), State::kHeld);
}

// The sender may have had no memory to say when.
TEST_F(HoldingsTest, AMessageIsRepeatedAfterHalfALeaseEvenIfNobodySaidWhen) {
  holdings_.arrive(kShown, false, now_);
  const SessionMessage message = say();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(holdings_.next(), now_ + 4500ms);
    now_ += 4500ms - 1ns;
    EXPECT_FALSE(has_to_say());

    now_ += 1ns;
    EXPECT_TRUE(has_to_say());
    EXPECT_EQ(say().sequence, message.sequence);
    EXPECT_FALSE(has_to_say());
  }
}

TEST_F(HoldingsTest, AMessageHasSoManyStepsAtMostAndTheNextHasTheOthers) {
  constexpr size_t kMost = 65'536;
  for (uint64_t serial = 1; serial <= kMost + 2; ++serial)
    holdings_.arrive({kOwner, kOther, 1, serial}, false, now_);

  const SessionMessage first = say();
  EXPECT_EQ(first.steps.size(), kMost);
  answer(first, applied(std::vector<uint8_t>(kMost, 1)));
  EXPECT_FALSE(holdings_.owners_to_tell(now_, Holdings::Say::kWhatSomebodyWaitsFor).empty());
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRegister, {kOwner, kOther, 1, kMost + 1}},
                                            {Kind::kRegister, {kOwner, kOther, 1, kMost + 2}}}));
}

TEST_F(HoldingsTest, ARefusedRegistrationIsLost) {
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({0}));
  EXPECT_EQ(changes_.refused, std::vector{kShown});
  EXPECT_EQ(holdings_.state(kShown), State::kLost);
  holdings_.drop(kShown);
  EXPECT_EQ(holdings_.references(), 0u);
  EXPECT_FALSE(holdings_.has_unfinished());  // there is nothing to release
}

TEST_F(HoldingsTest, WhatIsShownAgainAfterItWasRefusedIsAskedForAnew) {
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({0}));
  EXPECT_EQ(holdings_.arrive(kShown, false, now_), State::kRegistering);
  answer(say(), applied({1}));
  EXPECT_EQ(holdings_.state(kShown), State::kHeld);
}

TEST_F(HoldingsTest, TheLastDropReleases) {  // I2
  holdings_.arrive(kShown, false, now_);
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  holdings_.drop(kShown);
  EXPECT_FALSE(holdings_.has_unsaid());
  holdings_.drop(kShown);
  EXPECT_EQ(holdings_.references(), 0u);
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRelease, kShown}}));
}

TEST_F(HoldingsTest, DroppedWhileItsRegistrationIsUnansweredIsReleasedAfterwards) {  // I2
  holdings_.arrive(kShown, false, now_);
  const SessionMessage registration = say();
  holdings_.drop(kShown);
  EXPECT_FALSE(has_to_say());  // one message at a time
  answer(registration, applied({1}));
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRelease, kShown}}));
  EXPECT_EQ(holdings_.references(), 0u);
}

TEST_F(HoldingsTest, HeldAgainBeforeTheReleaseIsSaidKeepsTheOrder) {  // I1
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  holdings_.drop(kShown);
  EXPECT_EQ(holdings_.arrive(kShown, false, now_), State::kRegistering);
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRelease, kShown}, {Kind::kRegister, kShown}}));
}

TEST_F(HoldingsTest, AMessageIsRepeatedAsItWas) {  // I4
  holdings_.arrive(kShown, false, now_);
  const SessionMessage message = say();
  holdings_.arrive({kOwner, kOther, 1, 6}, false, now_);
  const auto again = holdings_.repeat(kOwner, now_ + 1s);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->sequence, message.sequence);
  EXPECT_EQ(again->steps, message.steps);
}

TEST_F(HoldingsTest, AnAnswerThatCameAlreadyChangesNothing) {  // I4
  holdings_.arrive(kShown, false, now_);
  const SessionMessage first = say();
  answer(first, applied({1}));
  holdings_.drop(kShown);
  const SessionMessage second = say();
  answer(first, SessionReply{SessionReply::Status::kOver, {}});
  EXPECT_TRUE(holdings_.has_unfinished());  // the second is still waited for
  answer(second, applied());
  EXPECT_FALSE(holdings_.has_unfinished());
}

TEST_F(HoldingsTest, ASilentHolderRenewsInTime) {  // I1
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  EXPECT_EQ(holdings_.sure_until(kShown), now_ + 9s);
  EXPECT_EQ(holdings_.next(), now_ + 3s);
  EXPECT_FALSE(has_to_say());
  now_ += 3s;
  const SessionMessage renewal = say();
  EXPECT_TRUE(renewal.steps.empty());
  EXPECT_FALSE(holdings_.has_unfinished());  // nobody waits for a renewal
  now_ += 1s;
  answer(renewal, applied());
  EXPECT_EQ(holdings_.sure_until(kShown), now_ - 1s + 9s);  // counted from when it was asked
}

TEST_F(HoldingsTest, AnOwnerWhoGaveUsUpHasLostWhatWeHeldAndIsAskedForTheRest) {  // I3
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  const RRefId fresh{kOwner, kOther, 1, 6};
  holdings_.arrive(fresh, false, now_);
  const SessionMessage message = say();
  answer(message, SessionReply{SessionReply::Status::kOver, {}});
  EXPECT_EQ(changes_.lost, std::vector{kShown});
  const SessionMessage anew = say();
  EXPECT_EQ(anew.epoch, message.epoch + 1);
  EXPECT_EQ(anew.sequence, 1u);
  EXPECT_EQ(anew.steps, (std::vector<Step>{{Kind::kRegister, fresh}}));
}

TEST_F(HoldingsTest, AnAcceptanceOutlivesTheSession) {
  holdings_.accept(kOwner, kShown, now_);
  answer(say(), SessionReply{SessionReply::Status::kOver, {}});
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kAccept, kShown}}));
}

TEST_F(HoldingsTest, ACreationOfUnknownOutcomeIsReleasedSoThatItNeverRuns) {  // I5
  const RRefId creation = holdings_.create(kOwner, now_);
  EXPECT_EQ(holdings_.state(creation), State::kCreating);
  holdings_.on_created(creation, Outcome::kUnknown, changes_);
  EXPECT_EQ(changes_.lost, std::vector{creation});
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRelease, creation}}));
}

TEST_F(HoldingsTest, DroppedBeforeItsCreationIsAnsweredIsReleasedOnce) {  // I2
  const RRefId creation = holdings_.create(kOwner, now_);
  holdings_.drop(creation);
  EXPECT_FALSE(holdings_.has_unsaid());
  holdings_.on_created(creation, Outcome::kAnswered, changes_);
  EXPECT_EQ(say().steps, (std::vector<Step>{{Kind::kRelease, creation}}));
  EXPECT_EQ(holdings_.references(), 0u);
}

TEST_F(HoldingsTest, NoIdIsUsedTwiceNotEvenInAnotherEpoch) {  // I3
  const RRefId first = holdings_.create(kOwner, now_);
  holdings_.arrive(kShown, false, now_);
  answer(say(), SessionReply{SessionReply::Status::kOver, {}});
  const RRefId second = holdings_.create(kOwner, now_);
  EXPECT_NE(first.serial, second.serial);
  EXPECT_GT(second.epoch, first.epoch);
}

TEST_F(HoldingsTest, ASessionThatHeldNothingForLongBeginsAnew) {  // I3
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  holdings_.drop(kShown);
  const SessionMessage release = say();
  answer(release, applied());
  now_ += 1h;  // the owner has ended it
  EXPECT_GT(holdings_.create(kOwner, now_).epoch, release.epoch);
}

TEST_F(HoldingsTest, EverythingOfALostOwnerIsLostAndNothingIsSaidToIt) {
  holdings_.arrive(kShown, false, now_);
  answer(say(), applied({1}));
  const RRefId creation = holdings_.create(kOwner, now_);
  holdings_.on_owner_lost(kOwner, changes_);
  EXPECT_EQ(changes_.lost.size(), 2u);
  holdings_.on_created(creation, Outcome::kUnknown, changes_);
  holdings_.drop(kShown);
  holdings_.drop(creation);
  EXPECT_FALSE(has_to_say());
  EXPECT_EQ(holdings_.references(), 0u);
}

// It was mistaken for dead and applied what we had said last: what we gave up must not stay there.
TEST_F(HoldingsTest, AnOwnerThatLivesAfterAllHearsOfANewEpoch) {  // I2
  holdings_.arrive(kShown, false, now_);
  const SessionMessage registration = say();
  holdings_.on_owner_lost(kOwner, changes_);
  EXPECT_FALSE(has_to_say());
  EXPECT_EQ(holdings_.next(), base::Time::max());  // nobody knocks at a dead owner's door
  EXPECT_GT(holdings_.create(kOwner, now_).epoch, registration.epoch);
}

TEST_F(HoldingsTest, ACreationThatCouldNotBeSentIsForgotten) {  // I2
  const RRefId creation = holdings_.create(kOwner, now_);
  EXPECT_FALSE(holdings_.is_dropped_creation(creation));
  holdings_.drop(creation);
  EXPECT_TRUE(holdings_.is_dropped_creation(creation));
  holdings_.on_created(creation, Outcome::kUnknown, changes_);
  EXPECT_EQ(holdings_.references(), 0u);
}

TEST_F(HoldingsTest, ReleasesMayWaitOthersMayNot) {
  holdings_.arrive(kShown, false, now_);
  EXPECT_FALSE(holdings_.owners_to_tell(now_, Holdings::Say::kWhatSomebodyWaitsFor).empty());
  answer(say(), applied({1}));
  holdings_.drop(kShown);
  EXPECT_TRUE(holdings_.owners_to_tell(now_, Holdings::Say::kWhatSomebodyWaitsFor).empty());
  EXPECT_TRUE(has_to_say());
}

}  // namespace
}  // namespace weft::rref
