// Reception under random interleavings: callers that wait, linger, sleep and give up, calls that
// nobody waits for, the loop, the pulse, a peer that answers in any order, connections that break.
// Every thread is a coroutine; what it does without a pause in between it does under CallingLink's
// lock.
//
// WEFT_RECEPTION_SEEDS says how many seeds, WEFT_RECEPTION_SEED runs a single one.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rpc/calling/reception.h"
#include "support/seeds.h"
#include "support/simulated_threads.h"

namespace weft::rpc::reception_simulation_test {
namespace {

constexpr uint64_t kTickInterval = 400;  // steps of all threads
constexpr uint64_t kMostSteps = 300'000;

using test::kNever;
using test::pause;
using test::pause_until;
using test::sleep_until;
using test::Task;
using test::Violation;

/// What is wrong with the threads around the core.
enum class Mutant {
  kNone,
  kNudgesNobody,
  kNoTicksAfterNudge,
  kTakesOverFromALoopThatReads,
  kPassesOnTheRoleOfAnotherConnection,
};

struct Faults {
  bool gives_up = false;
  bool breaks = false;
};

// --- the world -------------------------------------------------------------------------------

struct Call {
  uint64_t id = 0;
  bool ready = false;
  bool nudged = false;
  bool listened_to = false;
  size_t in_line = 0;
};

struct Reply {
  uint64_t id;
  uint64_t tick;  // when it came
};

struct Link {
  bool up = false;
  bool broken = false;
  bool watched = true;  // by the loop, for bytes
  int readers = 0;
  std::vector<uint64_t> queued;
  bool put_off = false;
  uint64_t put_off_since = 0;  // tick
  std::vector<uint64_t> at_peer;
  std::vector<Reply> inbox;
};
using LinkRef = std::shared_ptr<Link>;

class World {
 public:
  World(uint64_t seed, Faults faults, Mutant mutant)
      : random_(seed),
        faults_(faults),
        mutant_(mutant),
        polls_(below(4) > 0),
        most_rounds_(below(2) == 0 ? 1 : 12),
        reserved_of_three_(std::min<uint64_t>(3, below(6))),
        view_(1 + below(4)),
        core_(view_) {
    const uint64_t callers = 1 + below(4);
    for (uint64_t i = 0; i < callers; ++i) threads_.begin(caller());
    callers_ = threads_.size();
    threads_.begin(loop());
    threads_.begin(pulse());
    threads_.begin(peer());
    if (faults_.breaks) threads_.begin(breaker());
  }

  /// What went wrong, if anything.
  std::optional<std::string> play() {
    return threads_.run_to_rest(
        kMostSteps, [this] { return below(threads_.size()); },
        [this] { return listed_ ? next_tick_ : kNever; }, [this] { check_end(); });
  }

 private:
  using Core = Reception<Call>;
  using Receiver = Core::Receiver;

  uint64_t below(uint64_t end) { return random_() % end; }
  uint64_t now() const { return threads_.now(); }

  void check_end() const {
    for (size_t i = 0; i < callers_; ++i) {
      if (!threads_.is_done(i)) throw Violation("2: a caller sleeps for ever");
    }
    if (!table_.empty()) throw Violation("3: a call is never answered");
    if (listed_) throw Violation("5: the pulse ticks for nothing");
    if (link_ && !(core_.receiver() == Receiver::kLoop && link_->watched))
      throw Violation("5: nobody watches the connection");
    if (core_.receiver() == Receiver::kPollingCaller) throw Violation("1: a role without a thread");
  }

  // --- what is done under the lock ---
  void connect() {
    link_ = std::make_shared<Link>();
    core_.on_connecting();
  }
  void lose_link() {
    if (!link_) return;
    link_->broken = true;
    link_ = nullptr;
    core_.on_lost();
    for (auto& [id, call] : std::exchange(table_, {})) {
      forget(*call);
      call->ready = true;
    }
  }
  static void flush(const LinkRef& link) {
    if (link->broken || !link->up) return;
    link->at_peer.insert(link->at_peer.end(), link->queued.begin(), link->queued.end());
    link->queued.clear();
    link->put_off = false;
  }
  LinkRef link_to_flush() const {
    return link_ && link_->put_off && core_.sends_before_sleeping() ? link_ : nullptr;
  }
  void forget(Call& call) {
    if (std::exchange(call.in_line, 0) > 0) core_.clear_line_of(call);
    if (std::exchange(call.listened_to, false)) core_.remove_listener();
  }
  Call* take(uint64_t id) {
    const auto found = table_.find(id);
    if (found == table_.end()) return nullptr;
    Call* const call = found->second;
    table_.erase(found);
    forget(*call);
    return call;
  }
  void update_interest() {
    if (link_) link_->watched = core_.receiver() == Receiver::kLoop;
  }
  bool may_begin() const {
    if (core_.may_begin()) return true;
    return mutant_ == Mutant::kTakesOverFromALoopThatReads && core_.loop_reads() &&
           core_.receiver() == Receiver::kLoop;
  }
  static void begin_reading(const LinkRef& link) {
    if (++link->readers > 1) throw Violation("1: two threads read");
  }
  Core::Term begin_receiving(bool polls) {
    begin_reading(link_);
    return latest_ = core_.begin(polls);
  }
  void pass_on(Core::Term term, const LinkRef& link) {
    using Kind = Core::Successor::Kind;
    --link->readers;
    if (mutant_ == Mutant::kPassesOnTheRoleOfAnotherConnection) term = latest_;
    const auto successor = core_.end(term, [](const Call& call) { return call.ready; });
    switch (successor.kind) {
      case Kind::kNone:
        return;
      case Kind::kCaller:
        if (mutant_ != Mutant::kNudgesNobody) successor.waiter->nudged = true;
        if (mutant_ != Mutant::kNoTicksAfterNudge) listed_ = true;
        return;
      case Kind::kLoop:
        return update_interest();
      case Kind::kPulse:
        listed_ = true;
        return;
    }
  }

  // --- a caller ---
  Task caller() {
    const uint64_t rounds = 1 + below(most_rounds_);
    for (uint64_t round = 0; round < rounds; ++round) {
      switch (below(4)) {
        case 0:
          co_await call_and_wait();
          break;
        case 1:
          co_await call_several();
          break;
        case 2:
          co_await call_and_listen();
          break;
        case 3: {
          co_await sleep_until(now() + below(6 * kTickInterval));
          break;
        }
      }
    }
  }
  Call* make_call() {
    calls_.push_back(std::make_unique<Call>());
    calls_.back()->id = calls_.size();
    return calls_.back().get();
  }
  uint64_t limit() {
    if (!faults_.gives_up || below(2) == 0) return kNever;
    return now() + below(below(2) == 0 ? 100 : 4 * kTickInterval);
  }
  Task call_and_wait() {
    Call* const call = make_call();
    co_await start(call, /*waits=*/true);
    co_await wait_for(call, limit());
  }
  Task call_several() {
    std::vector<Call*> calls;
    const uint64_t number = 1 + below(2 * Core::kSentAtOnce);
    for (uint64_t i = 0; i < number; ++i) {
      calls.push_back(make_call());
      co_await start(calls.back(), /*waits=*/false);
    }
    const uint64_t waits_for = below(number + 1);  // the others nobody waits for
    for (uint64_t i = 0; i < waits_for; ++i) co_await wait_for(calls[i], limit());
  }
  Task call_and_listen() {
    Call* const call = make_call();
    co_await start(call, /*waits=*/false);
    if (!table_.contains(call->id)) co_return;
    if (!std::exchange(call->listened_to, true)) core_.add_listener();
    if (core_.call_loop()) update_interest();
    const LinkRef link = link_to_flush();
    co_await pause();
    if (link) flush(link);
  }

  Task start(Call* call, bool waits) {
    const bool reserved = below(3) < reserved_of_three_;
    if (below(30) == 0) co_await glance();
    if (!link_) connect();
    const LinkRef link = link_;
    table_[call->id] = call;
    link->queued.push_back(call->id);
    const bool connected = link->up;
    const bool puts_off = core_.puts_off({.calls = table_.size(),
                                          .unsent_bytes = 100 * link->queued.size(),
                                          .blocked = false,
                                          .caller_waits = waits});
    if (puts_off && !std::exchange(link->put_off, true)) link->put_off_since = ticks_;
    const bool needs_ticks = !reserved || core_.receiver() != Receiver::kLoop || puts_off;
    co_await pause();
    if (needs_ticks) listed_ = true;
    co_await pause();
    if (connected && !puts_off) flush(link);
  }
  // Whether the connection has ended meanwhile.
  Task glance() {
    if (!link_ || !core_.may_glance()) co_return;
    const LinkRef link = link_;
    const Core::Term term = begin_receiving(/*polls=*/false);
    co_await pause();
    if (!link->inbox.empty()) co_await take_frames(link);
    pass_on(term, link);
  }

  Task wait_for(Call* call, uint64_t limit) {
    while (!call->ready) {
      bool sleeps = false;
      co_await receive_for(call, limit, &sleeps);
      if (sleeps) {
        co_await pause_until([call] { return call->ready || call->nudged; }, limit);
        if (call->in_line > 0 && core_.leave_line(*call)) --call->in_line;
        // Its time may be up just when it was nudged.
        if (call->nudged && limit != kNever && below(2) == 0) limit = now();
      }
      if (!call->ready && now() >= limit) {
        if (take(call->id)) call->ready = true;  // gave up
        co_await pause();
      }
    }
  }
  Task receive_for(Call* call, uint64_t limit, bool* sleeps) {
    for (uint64_t spins = below(5);;) {
      if (call->ready) co_return;
      const bool concerned = link_ && link_->up;
      if (concerned && may_begin()) {
        co_await receive_as_caller(call, limit);
        co_return;
      }
      if (!concerned || spins == 0) {
        core_.enter_line(*call);
        ++call->in_line;
        call->nudged = false;
        *sleeps = true;
        const LinkRef link = link_to_flush();
        co_await pause();
        if (link) flush(link);
        co_return;
      }
      const LinkRef link = core_.sends_before_lingering() ? link_to_flush() : nullptr;
      co_await pause();
      if (link) flush(link);
      view_.begin_lingering();
      do {
        --spins;
        co_await pause();
      } while (spins > 0 && !call->ready && core_.receiver() != Receiver::kNobody);
      view_.end_lingering();
    }
  }
  Task receive_as_caller(Call* call, uint64_t limit) {
    const Core::Term term = begin_receiving(polls_);
    const LinkRef link = link_;
    co_await pause();
    if (link->put_off) flush(link);
    co_await receive_until(link, term, call, limit);
    pass_on(term, link);
    co_await pause();
    if (link->put_off) flush(link);
  }
  Task receive_until(LinkRef link, Core::Term term, Call* call, uint64_t limit) {
    uint64_t spins = polls_ ? 1 + below(5) : 0;
    for (bool polling = polls_;;) {
      co_await pause();
      if (polling && link->put_off) flush(link);
      if (link->broken) co_return;
      if (!link->inbox.empty()) {
        co_await take_frames(link);
        if (call->ready || now() >= limit) co_return;
        if (polls_ && !polling) core_.set_polling(term, polling = true);
        spins = polls_ ? 1 + below(5) : 0;
        continue;
      }
      if (call->ready || now() >= limit) co_return;
      if (spins > 0) {
        --spins;
        continue;
      }
      if (std::exchange(polling, false)) {
        core_.set_polling(term, false);
        co_await pause();
        if (link->put_off) flush(link);
      }
      co_await pause_until([on = link.get()] { return !on->inbox.empty() || on->broken; }, limit);
    }
  }
  Task take_frames(LinkRef link) {
    core_.on_received();
    const std::vector<Reply> replies = std::exchange(link->inbox, {});
    for (const Reply& reply : replies) {
      co_await pause();
      Call* const call = take(reply.id);
      co_await pause();
      if (call) call->ready = true;
    }
  }

  // --- the others ---
  Task loop() {
    for (;;) {
      co_await pause_until(
          [this] { return link_ && (!link_->up || (link_->watched && !link_->inbox.empty())); });
      co_await pause();  // what was reported may be old by now
      if (!link_) continue;
      const LinkRef link = link_;
      const bool reads = core_.begin_on_loop();
      if (reads) begin_reading(link);
      co_await pause();
      if (reads && !link->up && link == link_) {  // the hello
        link->up = true;
        core_.on_connected();
        co_await pause();
        flush(link);
      }
      if (reads && !link->inbox.empty()) co_await take_frames(link);
      core_.end_on_loop();
      if (reads) --link->readers;
      if (link != link_) continue;
      update_interest();
      const bool left = !link->queued.empty();
      co_await pause();
      if (left) flush(link);
    }
  }
  Task pulse() {
    for (;;) {
      co_await pause_until([this] { return listed_ && now() >= next_tick_; });
      next_tick_ = now() + kTickInterval;
      ++ticks_;
      check_patience();
      listed_ = false;
      co_await pause();
      const LinkRef link = link_ && link_->up ? link_ : nullptr;
      const bool put_off = link && link->put_off;
      const Core::Tick result = core_.on_tick(!table_.empty(), put_off);
      if (result.loop_begins) update_interest();
      co_await pause();
      if (put_off) flush(link);
      if (result.goes_on) listed_ = true;
    }
  }
  // At a tick.
  void check_patience() const {
    if (!link_) return;
    if (link_->put_off && ticks_ - link_->put_off_since > 3)
      throw Violation("4: a frame was put off for more than three ticks");
    for (const Reply& reply : link_->inbox) {
      const auto call = table_.find(reply.id);
      if (call == table_.end()) continue;  // given up
      if (ticks_ - reply.tick > 3) throw Violation("3: a reply lies for more than three ticks");
      const bool undisturbed = !faults_.gives_up && !faults_.breaks;
      if (undisturbed && call->second->in_line > 0 && ticks_ - reply.tick > 1)
        throw Violation("2: a caller sleeps although its reply is there");
    }
  }
  Task peer() {
    for (;;) {
      co_await pause_until([this] { return link_ && !link_->at_peer.empty(); });
      const LinkRef link = link_;
      if (!link) continue;
      co_await sleep_until(now() + below(below(3) == 0 ? 5 * kTickInterval : 30));
      const auto answers = 1 + below(3);
      for (uint64_t i = 0; i < answers && !link->at_peer.empty(); ++i) {
        const auto at = link->at_peer.begin() + static_cast<long>(below(link->at_peer.size()));
        link->inbox.push_back({*at, ticks_});
        link->at_peer.erase(at);
      }
    }
  }
  Task breaker() {
    const uint64_t times = 1 + below(3);
    for (uint64_t i = 0; i < times; ++i) {
      co_await sleep_until(now() + below(8 * kTickInterval));
      lose_link();
    }
  }

  std::mt19937_64 random_;
  const Faults faults_;
  const Mutant mutant_;
  const bool polls_;
  const uint64_t most_rounds_;
  const uint64_t reserved_of_three_;  // calls, for which the pulse need not tick
  ReceptionView view_;
  Core core_;
  Core::Term latest_ = 0;
  LinkRef link_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::map<uint64_t, Call*> table_;
  bool listed_ = false;  // the pulse ticks
  uint64_t ticks_ = 0;
  uint64_t next_tick_ = kTickInterval;
  size_t callers_ = 0;
  test::SimulatedThreads threads_;
};

const test::Seeds kAll = test::Seeds::of("WEFT_RECEPTION_SEED", 100'000);

std::optional<std::string> first_failure(Faults faults, const test::Seeds& seeds,
                                         Mutant mutant = Mutant::kNone) {
  return seeds.first_failure([&](uint64_t seed) { return World(seed, faults, mutant).play(); });
}

constexpr Faults kGiveUp{.gives_up = true};
constexpr Faults kBreak{.gives_up = false, .breaks = true};
constexpr Faults kBoth{.gives_up = true, .breaks = true};

TEST(ReceptionSimulation, EverybodyIsAnsweredAndItComesToRest) {
  EXPECT_EQ(first_failure({}, kAll), std::nullopt);
}
TEST(ReceptionSimulation, AlsoIfCallersGiveUp) {
  EXPECT_EQ(first_failure(kGiveUp, kAll), std::nullopt);
}
TEST(ReceptionSimulation, AlsoIfConnectionsBreak) {
  EXPECT_EQ(first_failure(kBreak, kAll), std::nullopt);
  EXPECT_EQ(first_failure(kBoth, kAll), std::nullopt);
}
TEST(ReceptionSimulation, FindsOutWhoNudgesNobody) {
  EXPECT_NE(first_failure({}, test::Seeds::up_to(20'000), Mutant::kNudgesNobody), std::nullopt);
}
TEST(ReceptionSimulation, FindsOutMissingTicksAfterANudge) {
  EXPECT_NE(first_failure(kGiveUp, test::Seeds::up_to(100'000), Mutant::kNoTicksAfterNudge),
            std::nullopt);
}
TEST(ReceptionSimulation, FindsOutACallerThatReadsBesideTheLoop) {
  EXPECT_NE(first_failure({}, test::Seeds::up_to(20'000), Mutant::kTakesOverFromALoopThatReads),
            std::nullopt);
}
TEST(ReceptionSimulation, FindsOutARoleThatOutlivesItsConnection) {
  EXPECT_NE(first_failure(kBreak, test::Seeds::up_to(20'000),
                          Mutant::kPassesOnTheRoleOfAnotherConnection),
            std::nullopt);
}

}  // namespace
}  // namespace weft::rpc::reception_simulation_test
