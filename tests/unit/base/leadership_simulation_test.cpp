// Lead, Slots and Search under random interleavings of their operations: threads that lead loops,
// run user code that is quick, slow or blocks, help with the backlog and stand by, and the pulse.
// The threads do what Crew and Desk do, but for threads that cannot be had or end, and rescues.
// Memory orders are not simulated; TSan looks at them.
//
// WEFT_LEADERSHIP_SEEDS says how many seeds, WEFT_LEADERSHIP_SEED runs a single one.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/lead.h"
#include "base/search.h"
#include "base/slots.h"
#include "support/seeds.h"
#include "support/simulated_threads.h"

namespace weft::base::leadership_simulation_test {
namespace {

using test::kNever;
using test::pause;
using test::pause_until;
using test::sleep_until;
using test::Task;
using test::Violation;

constexpr uint64_t kTickInterval = 60;  // steps of all threads
constexpr uint64_t kMostSteps = 100'000;

/// What is wrong with the threads.
enum class Mutant {
  kNone,
  kLeadsOnWithoutAsking,         // after user code
  kPulseAssignsWithoutTaking,    // a new leader
  kStopsSearchingWithoutALook,   // at the backlog afterwards
  kSleepsWithoutCallingForHelp,  // as a leader that gives its slot back
};

struct Scene {
  bool blocks = false;  // user code, where the crew is told
  bool pulse = false;   // there is one; user code also blocks where the crew is not told
};

struct Job {
  enum class Kind { kQuick, kLong, kBlocks, kBlocksUnseen } kind = Kind::kQuick;
  uint64_t takes = 0;
};

struct Post {
  Lead lead;
  std::deque<Job> calls;  // that have come, and nobody has read
  const void* toucher = nullptr;
  bool is_led = false;
};

struct Member {
  Member(Slots& slots, Search& search) : slot(slots), searcher(search) {}
  Slot slot;
  Searcher searcher;
  Post* post = nullptr;
  bool leading = false;
  Lead::Run run = 0;
  bool blocked_unseen = false;
  // Its next duty, while it stands by.
  enum class Duty { kNone, kLead, kHelp } duty = Duty::kNone;
  Post* to_lead = nullptr;
};

class World {
 public:
  World(uint64_t seed, Scene scene, Mutant mutant)
      : random_(seed),
        scene_(scene),
        mutant_(mutant),
        slots_(1 + below(3)),
        posts_(1 + below(3)),
        calls_left_(1 + below(30)) {
    for (auto& post : posts_) post = std::make_unique<Post>();
    for (auto& post : posts_) assign(Member::Duty::kLead, post.get());
    threads_.begin(callers());
    if (scene_.pulse) threads_.begin(pulse());
  }

  /// What went wrong, if anything.
  std::optional<std::string> play() {
    return threads_.run_to_rest(
        kMostSteps, [this] { return below(threads_.size()); },
        [this] { return is_busy() ? next_tick_ : kNever; }, [this] { check_end(); });
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  uint64_t now() const { return threads_.now(); }

  void check_end() const {
    for (const auto& post : posts_) {
      if (!post->is_led) throw Violation("nobody leads a loop");
      if (!post->calls.empty()) throw Violation("a call is never read");
    }
    if (!backlog_.empty()) throw Violation("a task waits for ever");
    if (done_ != made_) throw Violation("a call is lost");
    if (slots_.used() != 0) throw Violation("slots count that nobody uses");
    if (search_.searching() != 0) throw Violation("nobody searches, and it counts");
  }
  bool is_busy() const { return scene_.pulse && done_ != made_; }

  // --- threads ---
  void assign(Member::Duty duty, Post* post = nullptr) {
    if (!idle_.empty()) {
      Member& member = *idle_.back();
      idle_.pop_back();
      member.duty = duty;
      member.to_lead = post;
      return;
    }
    members_.push_back(std::make_unique<Member>(slots_, search_));
    members_.back()->duty = duty;
    members_.back()->to_lead = post;
    threads_.begin(thread_main(members_.back().get()));
  }
  Task thread_main(Member* me) {
    for (;;) {
      const Member::Duty duty = std::exchange(me->duty, Member::Duty::kNone);
      if (duty == Member::Duty::kLead) {
        me->post = me->to_lead;
        me->leading = true;
        me->post->lead.take();
        co_await pause();
        co_await lead(me);
        me->leading = false;
        me->slot.give();
      }
      co_await pause();
      co_await help(me, duty == Member::Duty::kHelp);
      co_await pause();
      idle_.push_back(me);
      co_await pause_until([me] { return me->duty != Member::Duty::kNone; });
    }
  }

  // --- leading, as Desk does ---
  void touch(Member* me) {
    if (std::exchange(me->post->toucher, me)) throw Violation("two threads lead a loop");
  }
  void let_go(Member* me) { me->post->toucher = nullptr; }

  Task lead(Member* me) {
    Post* const post = me->post;
    for (;;) {
      me->slot.give();
      co_await pause();
      if (!backlog_.empty() && mutant_ != Mutant::kSleepsWithoutCallingForHelp) {
        co_await pause();
        call_for_help();
      }
      if (!backlog_.empty() && !slots_.has_free() && me->slot.take()) {
        bool leads = true;
        co_await help_once(me, &leads);
        if (!leads) co_return;
        continue;
      }
      post->is_led = true;
      co_await pause_until([post] { return !post->calls.empty(); });
      post->is_led = false;
      while (!post->calls.empty()) {
        touch(me);
        const Job job = post->calls.front();
        post->calls.pop_front();
        co_await pause();
        let_go(me);
        if (below(3) == 0 || !me->slot.take()) {
          co_await pause();
          backlog_.push_back(job);
          co_await pause();
          call_for_help();
          continue;
        }
        me->run = post->lead.enter_user_code();
        co_await pause();
        if (job.kind == Job::Kind::kLong && below(2) == 0) {  // which is known
          take_lead_from(post, me->run);
          co_await pause();
        }
        co_await user_code(me, job);
        if (mutant_ == Mutant::kLeadsOnWithoutAsking) {
          if (!post->lead.leave_user_code(me->run)) post->lead.take();
        } else if (!post->lead.leave_user_code(me->run)) {
          me->leading = false;
          me->slot.give();
          co_return;
        }
        co_await pause();
      }
    }
  }
  // A task of the backlog, since no other thread can run it.
  Task help_once(Member* me, bool* leads) {
    me->run = me->post->lead.enter_user_code();
    co_await pause();
    if (!backlog_.empty()) {
      const Job job = backlog_.front();
      backlog_.pop_front();
      co_await user_code(me, job);
    }
    *leads = me->post->lead.leave_user_code(me->run);
    if (*leads) co_return;
    me->leading = false;
    me->slot.give();
  }
  bool take_lead_from(Post* post, Lead::Run run) {
    if (!post->lead.take_away(run)) return false;
    assign(Member::Duty::kLead, post);
    return true;
  }

  Task user_code(Member* me, Job job) {
    switch (job.kind) {
      case Job::Kind::kQuick:
        for (uint64_t i = 0; i < job.takes; ++i) co_await pause();
        break;
      case Job::Kind::kLong:
        co_await sleep_until(now() + job.takes * kTickInterval);
        break;
      case Job::Kind::kBlocks: {
        if (me->leading && take_lead_from(me->post, me->run)) me->leading = false;
        co_await pause();
        const bool had_slot = me->slot.held();
        if (had_slot) {
          me->slot.give();
          co_await pause();
          if (work_is_possible()) {
            co_await pause();
            call_for_help();
          }
        }
        co_await sleep_until(now() + job.takes * kTickInterval);
        if (had_slot) me->slot.take_beyond();
        break;
      }
      case Job::Kind::kBlocksUnseen:
        me->blocked_unseen = true;
        co_await sleep_until(now() + job.takes * kTickInterval);
        me->blocked_unseen = false;
        break;
    }
    co_await pause();
    ++done_;
  }

  // --- the backlog, as Crew does ---
  bool work_is_possible() const { return !backlog_.empty() && slots_.has_free(); }
  void call_for_help() {
    if (slots_.has_free() && search_.call_first()) assign(Member::Duty::kHelp);
  }
  Task help(Member* me, bool was_called) {
    if (was_called) {
      me->searcher.begin_called();
    } else {
      me->searcher.begin();
    }
    uint64_t spins = below(3);
    for (;;) {
      co_await pause();
      if (!backlog_.empty() && me->slot.take()) {
        co_await pause();
        const bool found = !backlog_.empty();
        if (found) {
          const Job job = backlog_.front();
          backlog_.pop_front();
          co_await pause();
          const bool searched = me->searcher.end();
          co_await pause();
          if (searched && work_is_possible()) call_for_help();
          co_await pause();
          co_await user_code(me, job);
        }
        me->slot.give();
        if (found) {
          co_await pause();
          me->searcher.begin();
          continue;
        }
      }
      if (spins > 0) {
        --spins;
        continue;
      }
      co_await pause();
      me->searcher.end();
      co_await pause();
      if (mutant_ == Mutant::kStopsSearchingWithoutALook || !work_is_possible()) co_return;
      co_await pause();
      me->searcher.begin();
    }
  }

  // --- the others ---
  Task pulse() {
    for (;;) {
      co_await pause_until([this] { return is_busy() && now() >= next_tick_; });
      next_tick_ = now() + kTickInterval;
      for (const auto& post : posts_) {
        const auto slow = post->lead.lasting_run();
        co_await pause();
        if (!slow) continue;
        if (mutant_ == Mutant::kPulseAssignsWithoutTaking) {
          assign(Member::Duty::kLead, post.get());
        } else {
          take_lead_from(post.get(), *slow);
        }
      }
      for (size_t i = 0; i < members_.size(); ++i) {
        co_await pause();
        Member& member = *members_[i];
        const Slot::State state = member.slot.state();
        co_await pause();
        const bool blocked = member.blocked_unseen;
        co_await pause();  // what was seen may be old by now
        if (state == Slot::State::kUsed && blocked) member.slot.on_blocked();
        if (state == Slot::State::kBlocked && !blocked) member.slot.on_running();
      }
      co_await pause();
      if (work_is_possible() && search_.searching() == 0) {
        search_.call_another();
        assign(Member::Duty::kHelp);
      }
    }
  }
  Task callers() {
    for (; calls_left_ > 0; --calls_left_) {
      if (below(3) == 0) co_await sleep_until(now() + below(3 * kTickInterval));
      Job job{Job::Kind::kQuick, below(6)};
      if (below(5) == 0) job = {Job::Kind::kLong, 1 + below(5)};
      if (scene_.blocks && below(4) == 0) job = {Job::Kind::kBlocks, below(4)};
      if (scene_.pulse && below(4) == 0) job = {Job::Kind::kBlocksUnseen, below(8)};
      ++made_;
      posts_[below(posts_.size())]->calls.push_back(job);
      co_await pause();
    }
  }

  std::mt19937_64 random_;
  const Scene scene_;
  const Mutant mutant_;
  Slots slots_;
  Search search_;
  std::vector<std::unique_ptr<Post>> posts_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Member*> idle_;
  std::deque<Job> backlog_;
  uint64_t calls_left_;
  uint64_t made_ = 0;
  uint64_t done_ = 0;
  uint64_t next_tick_ = kTickInterval;
  test::SimulatedThreads threads_;
};

const test::Seeds kAll = test::Seeds::of("WEFT_LEADERSHIP_SEED", 100'000);

std::optional<std::string> first_failure(Scene scene, const test::Seeds& seeds,
                                         Mutant mutant = Mutant::kNone) {
  return seeds.first_failure([&](uint64_t seed) { return World(seed, scene, mutant).play(); });
}

constexpr Scene kWithBlocking{.blocks = true, .pulse = false};
constexpr Scene kWithPulse{.blocks = true, .pulse = true};

TEST(LeadershipSimulation, EveryCallRunsAndOneThreadLeads) {
  EXPECT_EQ(first_failure({}, kAll), std::nullopt);
}
TEST(LeadershipSimulation, AlsoIfUserCodeBlocks) {
  EXPECT_EQ(first_failure(kWithBlocking, kAll), std::nullopt);
}
TEST(LeadershipSimulation, AlsoIfThePulseTakesTheLeadAndSlots) {
  EXPECT_EQ(first_failure(kWithPulse, kAll), std::nullopt);
}
TEST(LeadershipSimulation, FindsOutALeaderThatDoesNotAskWhetherItLeads) {
  EXPECT_NE(first_failure(kWithBlocking, test::Seeds::up_to(20'000), Mutant::kLeadsOnWithoutAsking),
            std::nullopt);
}
TEST(LeadershipSimulation, FindsOutAPulseThatAssignsASecondLeader) {
  EXPECT_NE(
      first_failure(kWithPulse, test::Seeds::up_to(20'000), Mutant::kPulseAssignsWithoutTaking),
      std::nullopt);
}
TEST(LeadershipSimulation, FindsOutAHelperThatDoesNotLookAgain) {
  EXPECT_NE(first_failure({}, test::Seeds::up_to(20'000), Mutant::kStopsSearchingWithoutALook),
            std::nullopt);
}
TEST(LeadershipSimulation, FindsOutALeaderThatSleepsOverTheBacklog) {
  EXPECT_NE(first_failure({}, test::Seeds::up_to(20'000), Mutant::kSleepsWithoutCallingForHelp),
            std::nullopt);
}

}  // namespace
}  // namespace weft::base::leadership_simulation_test
