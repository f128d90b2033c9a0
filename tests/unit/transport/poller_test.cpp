// Sources that the system does not watch; those that it watches: tests/contract.
// SPDX-License-Identifier: BSD-3-Clause
#include "transport/poller.h"

#include <sys/eventfd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace weft::transport {
namespace {

using std::chrono::seconds;
constexpr base::Duration kNow{0};

// A source that its peer, here the test, makes ready. It gives one sign for each time it is armed.
class ToldSource final : public EventSource {
 public:
  enum Reads { kReadsSigns, kReadsNoSigns };
  explicit ToldSource(Reads reads = kReadsSigns) : reads_(reads) {}

  // For the peer.
  void become_ready(uint32_t bits) {
    ready_.fetch_or(bits);
    if ((armed_.load() & bits) != 0) give_sign();
  }
  void give_sign() {
    armed_ = kNothing;
    const uint64_t one = 1;
    ASSERT_EQ(write(sign_.get(), &one, sizeof one), ssize_t{sizeof one});
  }
  void become_idle() { ready_ = kNothing; }

  uint32_t armed_for() const { return armed_; }
  int looks() const { return looks_; }

 protected:
  int descriptor() const override { return sign_.get(); }
  bool is_watched_by_system() const override { return false; }
  Readiness arm(uint32_t interest) override {
    armed_ = interest;
    return look(interest);
  }
  Readiness look(uint32_t interest) const override {
    ++looks_;
    const uint32_t ready = ready_ & interest;
    return {(ready & kReadable) != 0, (ready & kWritable) != 0};
  }
  void take_sign(bool) override {
    if (reads_ == kReadsNoSigns) return;
    uint64_t ignored;
    [[maybe_unused]] const ssize_t bytes = read(sign_.get(), &ignored, sizeof ignored);
  }

 private:
  const Reads reads_;
  PrivateDescriptor sign_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::atomic<uint32_t> ready_{kNothing};
  std::atomic<uint32_t> armed_{kNothing};
  mutable std::atomic<int> looks_{0};
};

std::vector<uint64_t> tokens(std::span<const PollEvent> events) {
  std::vector<uint64_t> all;
  for (const PollEvent& event : events) all.push_back(event.token);
  return all;
}
using Tokens = std::vector<uint64_t>;

TEST(Poller, ArmsASourceThatItsPeerTells) {
  Poller poller;
  ToldSource source;

  ASSERT_TRUE(poller.add(source, kReadable, 7));

  EXPECT_EQ(source.armed_for(), kReadable);
  EXPECT_FALSE(poller.has_events());
  EXPECT_EQ(tokens(poller.wait(kNow)), Tokens{});
}

TEST(Poller, IsWokenByTheSignOfASource) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);

  std::thread peer([&] { source.become_ready(kReadable); });
  const auto events = poller.wait(seconds(20));
  peer.join();

  ASSERT_EQ(tokens(events), Tokens{7});
  EXPECT_TRUE(events[0].readable);
  EXPECT_FALSE(events[0].writable);
}

TEST(Poller, ReportsASourceAsLongAsItIsReady) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);
  source.become_ready(kReadable);

  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(poller.has_events());
    EXPECT_EQ(tokens(poller.wait(i % 2 == 0 ? kNow : base::Duration(seconds(20)))), Tokens{7});
  }
  source.become_idle();

  EXPECT_FALSE(poller.has_events());
  EXPECT_EQ(tokens(poller.wait(kNow)), Tokens{});
}

TEST(Poller, ASourceThatWasReadyWhenItWasAddedIsReported) {
  Poller poller;
  ToldSource source;
  source.become_ready(kWritable);

  poller.add(source, kReadable | kWritable, 7);

  const auto events = poller.wait(seconds(20));
  ASSERT_EQ(tokens(events), Tokens{7});
  EXPECT_TRUE(events[0].writable);
}

TEST(Poller, AnAwakeSourceThatHasNothingIsArmedBeforeItSleeps) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);
  source.become_ready(kReadable);
  poller.wait(seconds(20));
  source.become_idle();
  ASSERT_EQ(source.armed_for(), kNothing);

  poller.wait(kNow);
  EXPECT_EQ(source.armed_for(), kNothing);  // it does not sleep
  poller.wait(std::chrono::microseconds(1));
  EXPECT_EQ(source.armed_for(), kReadable);
  const int looks = source.looks();
  poller.wait(kNow);

  EXPECT_EQ(source.looks(), looks);  // a source that sleeps costs nothing
}

TEST(Poller, WhatASleeperIsToldLaterArmsIt) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);

  poller.change(source, kReadable | kWritable, 7);
  EXPECT_EQ(source.armed_for(), kReadable | kWritable);
  poller.change(source, kNothing, 7);
  source.become_ready(kReadable);
  EXPECT_EQ(tokens(poller.wait(kNow)), Tokens{});
  poller.change(source, kReadable, 7);

  EXPECT_EQ(tokens(poller.wait(seconds(20))), Tokens{7});
}

TEST(Poller, AChangeEndsAWaitIfWhatIsWantedIsThere) {
  Poller poller;
  ToldSource source;
  poller.add(source, kNothing, 7);
  source.become_ready(kReadable);

  std::thread other([&] { poller.change(source, kReadable, 7); });
  Tokens found;
  for (int i = 0; i < 2 && found.empty(); ++i) found = tokens(poller.wait(seconds(20)));
  other.join();

  EXPECT_EQ(found, Tokens{7});
}

TEST(Poller, ASignForNothingEndsNoWait) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);

  source.give_sign();
  EXPECT_EQ(tokens(poller.wait(std::chrono::milliseconds(1))), Tokens{});
  EXPECT_EQ(source.armed_for(), kReadable);
  source.give_sign();
  std::thread peer([&] {
    while (source.armed_for() == kNothing) std::this_thread::yield();
    source.become_ready(kReadable);
  });
  const Tokens found = tokens(poller.wait(seconds(20)));
  peer.join();

  EXPECT_EQ(found, Tokens{7});
}

TEST(Poller, ASignIsNoticedAlsoIfEarlierOnesWereNotRead) {
  Poller poller;
  ToldSource source(ToldSource::kReadsNoSigns);
  poller.add(source, kReadable, 7);
  for (int i = 0; i < 5; ++i) {
    std::thread peer([&] {
      while (source.armed_for() == kNothing) std::this_thread::yield();
      source.become_ready(kReadable);
    });
    EXPECT_EQ(tokens(poller.wait(seconds(20))), Tokens{7});
    peer.join();
    source.become_idle();
    EXPECT_EQ(tokens(poller.wait(std::chrono::microseconds(1))), Tokens{});
  }
}

TEST(Poller, LooksAtAwakeSourcesWithoutArmingThem) {
  Poller poller;
  ToldSource source;
  poller.add(source, kReadable, 7);
  source.become_ready(kReadable);
  EXPECT_EQ(tokens(poller.look()), Tokens{});  // nobody has told the poller yet
  poller.wait(seconds(20));

  EXPECT_EQ(tokens(poller.look()), Tokens{7});
  source.become_idle();
  EXPECT_EQ(tokens(poller.look()), Tokens{});

  EXPECT_EQ(source.armed_for(), kNothing);
}

TEST(Poller, ARemovedSourceIsNeverTouchedAgain) {
  Poller poller;
  auto source = std::make_unique<ToldSource>();
  poller.add(*source, kReadable, 7);
  source->become_ready(kReadable);
  poller.wait(seconds(20));

  poller.remove(*source, 7);
  source.reset();

  EXPECT_FALSE(poller.has_events());
  EXPECT_EQ(tokens(poller.wait(kNow)), Tokens{});
}

TEST(Poller, ManyReadySourcesAllHaveTheirTurn) {
  constexpr size_t kCount = 200;
  Poller poller;
  std::vector<std::unique_ptr<ToldSource>> sources;
  for (size_t i = 0; i < kCount; ++i) {
    sources.push_back(std::make_unique<ToldSource>());
    sources.back()->become_ready(kReadable);
    poller.add(*sources.back(), kReadable, i);
  }

  std::vector<int> reported(kCount);
  for (int turn = 0; turn < 8; ++turn) {
    for (const uint64_t token : tokens(poller.wait(seconds(20)))) ++reported[token];
  }

  for (size_t i = 0; i < kCount; ++i) EXPECT_GE(reported[i], 2) << i;
}

TEST(Poller, AwakeSourcesDoNotHideThoseThatTheSystemWatches) {
  Poller poller;
  ToldSource busy, other;
  poller.add(busy, kReadable, 7);
  poller.add(other, kReadable, 8);
  busy.become_ready(kReadable);
  ASSERT_EQ(tokens(poller.wait(seconds(20))), Tokens{7});
  other.become_ready(kReadable);  // gives a sign, through the system

  bool seen = false;
  for (int turn = 0; turn < 16 && !seen; ++turn) {
    for (const uint64_t token : tokens(poller.wait(seconds(20)))) seen |= token == 8;
  }

  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace weft::transport
