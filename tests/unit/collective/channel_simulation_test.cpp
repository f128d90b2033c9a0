// Channels of two to five members under reordering, repetition and delay, driven by one random
// number generator. A member that has finished an operation spoils its tensors at once, so the test
// fails if their memory is still being sent, or written to.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <deque>
#include <list>
#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collective/channel_world.h"

namespace weft::collective::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeeds = 1500;

struct Plan {
  Kind kind = Kind::kBarrier;
  int64_t elements = 0;
  at::ScalarType type = at::kFloat;
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
  AllReduceWay way = AllReduceWay::kAutomatic;
  bool shares_memory = false;
};

Tensors in_other_memory(const Tensors& like) {
  Tensors tensors;
  for (const at::Tensor& each : like) tensors.push_back(at::empty_like(each));
  return tensors;
}

Plan random_plan(World& world) {
  Plan plan;
  plan.kind = static_cast<Kind>(world.pick(5));
  // Copied when sent; sent as it is; and too much for whoever brings the last chunk.
  plan.elements = std::vector<int64_t>{0, 1, 7, 300, 9000, 20'001}[world.pick(6)];
  // In several segments.
  if (world.one_in(60)) plan.elements = 1'300'001;
  plan.type = world.one_in(2) ? at::kFloat : at::kLong;
  plan.root = static_cast<int>(world.pick(world.size()));
  plan.op = world.one_in(3) ? ReduceOp::kMax : ReduceOp::kSum;
  plan.way = static_cast<AllReduceWay>(world.pick(4));
  plan.shares_memory = world.one_in(2);
  return plan;
}

// A broadcast of it is sent at once.
bool is_little(const Plan& plan) {
  return plan.elements * static_cast<int64_t>(c10::elementSize(plan.type)) <= 64 * 1024;
}

// What the member of this rank gives.
at::Tensor given(const Plan& plan, int rank, int64_t round, int64_t place = 0) {
  return at::full({plan.elements}, (rank + 1) * 100 + round * 7 + place, plan.type);
}

at::Tensor reduced(const Plan& plan, const std::vector<int>& ranks, int64_t round,
                   int64_t place = 0) {
  at::Tensor all = given(plan, ranks.front(), round, place);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const at::Tensor next = given(plan, ranks[i], round, place);
    all = plan.op == ReduceOp::kSum ? all + next : all.maximum(next);
  }
  return all;
}

// An operation that a member has begun.
class Begun {
 public:
  Begun(Channel& channel, const Plan& plan, const std::vector<int>& ranks, int64_t round)
      : plan_(plan),
        ranks_(ranks),
        round_(round),
        place_(channel.place_in(ranks)),
        tensors_(tensors(channel.rank())),
        outcome_(channel.start(signature_of(plan.kind, tensors_, plan.op, root()), ranks,
                               algorithm())) {}

  bool ready() const { return outcome_.ready(); }
  std::optional<Error> error() const { return outcome_.error(); }

  void expect_right_and_spoil() {
    ASSERT_FALSE(outcome_.error()) << outcome_.error()->message();
    const Outcome outcome = outcome_.wait();
    if (plan_.kind == Kind::kAllReduce) {
      const at::Tensor& sum = outcome.chunks.empty() ? tensors_[0] : outcome.chunks[0].at(0);
      EXPECT_TRUE(at::equal(sum, reduced(plan_, ranks_, round_)));
    } else if (plan_.kind == Kind::kBroadcast) {
      EXPECT_TRUE(at::equal(tensors_[0], given(plan_, plan_.root, round_)));
    } else if (plan_.kind == Kind::kAllGather) {
      for (size_t i = 0; i < ranks_.size(); ++i) {
        EXPECT_TRUE(at::equal(outcome.chunks.at(i).at(0), given(plan_, ranks_[i], round_)));
      }
    } else if (plan_.kind == Kind::kReduceScatter) {
      EXPECT_TRUE(at::equal(outcome.chunks.at(0).at(0),
                            reduced(plan_, ranks_, round_, static_cast<int64_t>(place_.own))));
    }
    for (at::Tensor& tensor : tensors_) tensor.fill_(-1);
  }

 private:
  int root() const { return plan_.kind == Kind::kBroadcast ? plan_.root : -1; }
  Tensors tensors(int rank) const {
    if (plan_.kind == Kind::kBarrier) return {};
    if (plan_.kind != Kind::kReduceScatter) return {given(plan_, rank, round_)};
    Tensors all;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      all.push_back(given(plan_, rank, round_, static_cast<int64_t>(i)));
    }
    return all;
  }
  std::unique_ptr<Algorithm> algorithm() const {
    const Folding folding{plan_.op};
    switch (plan_.kind) {
      case Kind::kAllReduce:
        return all_reduce_algorithm(place_, tensors_, folding, plan_.way,
                                    plan_.shares_memory ? &in_other_memory : SharedMemory());
      case Kind::kBroadcast:
        return broadcast_algorithm(place_, tensors_, static_cast<size_t>(plan_.root));
      case Kind::kAllGather:
        return all_gather_algorithm(place_, tensors_);
      case Kind::kReduceScatter:
        return reduce_scatter_algorithm(place_, tensors_, folding);
      default:
        return barrier_algorithm(place_);
    }
  }

  const Plan plan_;
  const std::vector<int> ranks_;
  const int64_t round_;
  const Place place_;
  Tensors tensors_;
  Future<Outcome> outcome_;
};

// A member that does what is planned, some of it before the earlier ones are over.
class Member {
 public:
  Member(Channel& channel, std::vector<Plan> plans) : channel_(channel), plans_(std::move(plans)) {}

  bool is_done() const { return next_ == plans_.size() && begun_.empty(); }
  void stop_at(size_t number) { plans_.resize(number); }
  void change(size_t number, const Plan& plan) { plans_[number] = plan; }
  const Plan& plan(size_t number) const { return plans_[number]; }

  void move(World& world) {
    if (ended) return;
    for (Begun& each : begun_) {
      if (each.ready() && each.error()) ended = each.error();
    }
    if (ended) return;
    const auto over = [](Begun& each) {
      if (!each.ready()) return false;
      each.expect_right_and_spoil();
      return true;
    };
    std::erase_if(begun_, over);
    if (next_ == plans_.size() || begun_.size() > world.pick(3)) return;
    try {
      begun_.emplace_back(channel_, plans_[next_], channel_.everybody(), next_);
      ++next_;
    } catch (const Error& error) {
      ended = error;
    }
  }

  std::optional<Error> ended;  // what ended it, if something did

 private:
  Channel& channel_;
  std::vector<Plan> plans_;
  size_t next_ = 0;
  std::list<Begun> begun_;
};

class ChannelSimulation : public testing::Test {
 protected:
  void start(uint64_t seed) {
    members.clear();
    world = std::make_unique<World>(2 + seed % 4, seed);
    plans.clear();
    for (size_t i = 0; i < 5; ++i) plans.push_back(random_plan(*world));
    plans.push_back({});  // a barrier, so that everybody depends on everybody
    for (const auto& channel : world->channels) members.emplace_back(*channel, plans);
  }
  // Until nothing moves any more.
  void run() {
    for (int idle = 0; idle < 50;) {
      if (!world->quiet() && !world->one_in(3)) {
        world->step();
        idle = 0;
      } else {
        members[world->pick(members.size())].move(*world);
        if (world->quiet()) ++idle;
      }
    }
  }
  void expect_all_ended(ErrorCode code, const std::vector<std::string>& texts) {
    for (size_t i = 0; i < members.size(); ++i) {
      ASSERT_TRUE((*world)[i].failure()) << i;
      EXPECT_EQ((*world)[i].failure()->code(), code) << (*world)[i].failure()->message();
      for (const std::string& text : texts) {
        EXPECT_THAT((*world)[i].failure()->message(), HasSubstr(text));
      }
      EXPECT_FALSE((*world)[i].busy());
    }
  }
  void pass_deadline() {
    world->clock.advance(kTimeout + std::chrono::seconds(1));
    for (const auto& channel : world->channels) channel->missing(world->clock.now());
    run();
  }

  std::unique_ptr<World> world;
  std::vector<Plan> plans;
  std::deque<Member> members;
};

TEST_F(ChannelSimulation, EverybodyFinishesWithTheRightValues) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    start(seed);

    run();

    for (const Member& each : members) {
      EXPECT_TRUE(each.is_done());
      EXPECT_FALSE(each.ended) << each.ended->message();
    }
    for (const auto& channel : world->channels) {
      EXPECT_FALSE(channel->busy());
      EXPECT_TRUE(channel->missing(world->clock.now()).empty());
    }
  }
}

Plan another(World& world, Plan plan) {
  if (plan.kind == Kind::kBroadcast && world.one_in(2)) {
    plan.root = (plan.root + 1) % static_cast<int>(world.size());
  } else if (plan.kind == Kind::kAllReduce && world.one_in(2)) {
    plan.op = plan.op == ReduceOp::kSum ? ReduceOp::kMax : ReduceOp::kSum;
  } else if (plan.kind < Kind::kAllGather && world.one_in(2)) {
    plan.elements += 1;
  } else {
    plan.kind = plan.kind == Kind::kBarrier ? Kind::kAllGather : Kind::kBarrier;
  }
  return plan;
}

TEST_F(ChannelSimulation, WhoDisagreeLearnAboutWhat) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    start(seed);
    const size_t at = world->pick(plans.size());
    const size_t who = world->pick(members.size());
    const Plan other = another(*world, plans[at]);
    members[who].change(at, other);
    // A root that takes another for it: all wait for somebody who waits, and only time tells. If it
    // is much, everybody has told everybody before.
    const bool unheard = other.kind == Kind::kBroadcast && is_little(plans[at]) &&
                         plans[at].root == static_cast<int>(who) && other.root != plans[at].root;

    run();

    if (unheard) {
      pass_deadline();
      expect_all_ended(ErrorCode::kTimeout, {"missing: m"});
      continue;
    }
    expect_all_ended(ErrorCode::kInvalidArgument, {"disagree about operation " + std::to_string(at),
                                                   "m" + std::to_string(who) + " calls",
                                                   other.kind == Kind::kBarrier ? "barrier" : ""});
  }
}

TEST_F(ChannelSimulation, WhoIsMissingIsNamed) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    start(seed);
    const size_t who = world->pick(members.size());
    const size_t from = world->pick(plans.size());
    members[who].stop_at(from);
    // Those who exchange with one partner after another know their partner only.
    const bool is_named = std::none_of(
        plans.begin() + static_cast<std::ptrdiff_t>(from), plans.end(), [](const Plan& plan) {
          return plan.kind == Kind::kAllReduce && plan.way == AllReduceWay::kDoubling;
        });

    run();
    for (const auto& channel : world->channels) EXPECT_FALSE(channel->failure());
    pass_deadline();

    expect_all_ended(ErrorCode::kTimeout, {"took longer than 30 s",
                                           is_named ? "m" + std::to_string(who) : "missing: m"});
  }
}

TEST_F(ChannelSimulation, AFailureReachesEverybodyWhenever) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    start(seed);
    for (size_t steps = world->pick(60); steps > 0; --steps) {
      members[world->pick(members.size())].move(*world);
      if (!world->quiet()) world->step();
    }

    (*world)[world->pick(world->size())].fail_and_tell(Error(ErrorCode::kPeerLost, "m9 was lost"));
    run();

    expect_all_ended(ErrorCode::kPeerLost, {"m9 was lost"});
    for (const auto& channel : world->channels) EXPECT_THROW(channel->agree_on_members(), Error);
    for (const Member& each : members) {
      EXPECT_TRUE(each.is_done() || each.ended->message() == "m9 was lost");
    }
  }
}

// --- joining ---------------------------------------------------------------------------------

// In each epoch some number of steps: a membership round, then a sum over those who are present.
class Joiner {
 public:
  Joiner(Channel& channel, std::vector<std::vector<size_t>> steps)
      : channel_(channel), steps_(std::move(steps)) {}

  bool is_done() const { return epoch_ == steps_.size(); }
  std::string state() const {
    return "epoch " + std::to_string(epoch_) + ", step " + std::to_string(step_);
  }

  void move() {
    if (is_done()) return;
    if (last_) {
      if (last_->ready()) on_all_departed();
    } else if (sum_) {
      if (sum_->ready()) on_sum();
    } else if (membership_) {
      if (membership_->ready()) on_membership();
    } else if (step_ == own_steps()) {
      last_ = channel_.depart();
    } else {
      membership_ = channel_.agree_on_members();
    }
  }

 private:
  size_t own_steps() const { return steps_[epoch_][static_cast<size_t>(channel_.rank())]; }
  void on_membership() {
    std::vector<int> expected;
    for (size_t i = 0; i < steps_[epoch_].size(); ++i) {
      if (steps_[epoch_][i] > step_) expected.push_back(static_cast<int>(i));
    }
    EXPECT_EQ(membership_->wait().present, expected) << state();
    membership_.reset();
    const Plan plan{Kind::kAllReduce, int64_t{step_ % 2 == 0 ? 3 : 18'000}};
    sum_ = std::make_unique<Begun>(channel_, plan, expected, static_cast<int64_t>(step_));
  }
  void on_sum() {
    sum_->expect_right_and_spoil();
    sum_.reset();
    ++step_;
  }
  void on_all_departed() {
    const auto& steps = steps_[epoch_];
    EXPECT_EQ(last_->wait(), std::max_element(steps.begin(), steps.end()) - steps.begin());
    last_.reset();
    step_ = 0;
    ++epoch_;
  }

  Channel& channel_;
  const std::vector<std::vector<size_t>> steps_;
  size_t epoch_ = 0, step_ = 0;
  std::optional<Future<Outcome>> membership_;
  std::unique_ptr<Begun> sum_;
  std::optional<Future<int>> last_;
};

TEST(ChannelJoinSimulation, MembersDepartWhenTheyHaveNoMoreAndAllStartAgain) {
  for (uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(2 + seed % 4, seed);
    std::vector<std::vector<size_t>> steps(3, std::vector<size_t>(world.size()));
    for (auto& epoch : steps) {
      for (size_t& each : epoch) each = world.pick(5);
    }
    std::deque<Joiner> joiners;
    for (const auto& channel : world.channels) joiners.emplace_back(*channel, steps);

    const auto all_done = [&] {
      return std::all_of(joiners.begin(), joiners.end(),
                         [](const Joiner& each) { return each.is_done(); });
    };
    for (size_t moves = 0; moves < 20'000 && !(all_done() && world.quiet()); ++moves) {
      if (world.quiet() || world.one_in(2)) {
        joiners[world.pick(joiners.size())].move();
      } else {
        world.step();
      }
    }

    for (size_t i = 0; i < world.size(); ++i) {
      EXPECT_TRUE(joiners[i].is_done()) << joiners[i].state();
      EXPECT_FALSE(world[i].failure()) << world[i].failure()->message();
      EXPECT_FALSE(world[i].busy());
    }
  }
}

}  // namespace
}  // namespace weft::collective::test
