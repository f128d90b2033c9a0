// Process groups whose members make mistakes, are late, leave or are lost.
// SPDX-License-Identifier: BSD-3-Clause
#include <future>
#include <optional>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective/chunk_call.h"
#include "collective/process_groups.h"
#include "collective/reserved_functions.h"
#include "unit/collective/process_group_scene.h"

namespace weft::process_group_failures {
namespace {

using test::error_of;
using test::expect_full;
using testing::HasSubstr;
using namespace std::chrono_literals;

class ProcessGroupFailures : public test::ProcessGroupScene {
 protected:
  ProcessGroupFailures() : ProcessGroupScene({"a", "b", "c"}) {}

  // One group, with the handles of all members.
  std::vector<std::optional<ProcessGroup>> make_group(const GroupOptions& options = {}) {
    std::vector<std::optional<ProcessGroup>> handles(3);
    on_all([&](Agent& agent, size_t rank) { handles[rank] = new_group(agent, {}, options); });
    return handles;
  }
  /// Others may have told this one before it begins: then it throws at once.
  static Error error_soon(const std::function<Future<void>()>& begin) {
    return error_of([&] {
      const Future<void> future = begin();
      if (future.wait_for(20s)) future.wait();
    });
  }
  /// What the group says from now on.
  static void expect_ended(const ProcessGroup& group, ErrorCode code) {
    EXPECT_EQ(error_of([&] { group.barrier(); }).code(), code);
  }
};

// --- making one ------------------------------------------------------------------------------

TEST_F(ProcessGroupFailures, MistakesInTheNames) {
  const auto refused = [&](const std::vector<std::string>& names) {
    const Error error = error_of([&] { new_group(agents[0], names); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
    return error.message();
  };
  EXPECT_THAT(refused({"b", "c"}), HasSubstr("this worker, a, is not in it"));
  EXPECT_THAT(refused({"a", "b", "a"}), HasSubstr("a is named twice"));
  EXPECT_THAT(refused({"a", "zorro"}), HasSubstr("zorro"));
}

TEST_F(ProcessGroupFailures, OrdersThatDiffer) {
  on_all([](Agent& agent, size_t rank) {
    const Error error = error_of([&] {
      new_group(agent, rank == 1 ? std::vector<std::string>{"c", "b", "a"}
                                 : std::vector<std::string>{"a", "b", "c"});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("[c, b, a]"));
    EXPECT_THAT(error.message(), HasSubstr("[a, b, c]"));
  });
  in_group([](const ProcessGroup& group, int) { group.barrier(); });
}

TEST_F(ProcessGroupFailures, TimeoutsThatDiffer) {
  on_all([](Agent& agent, size_t rank) {
    const Error error = error_of([&] { new_group(agent, {}, {.timeout = rank == 0 ? 10s : 20s}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("10 s"));
  });
}

TEST_F(ProcessGroupFailures, NobodyElseComes) {
  const Error error = error_of([&] { new_group(agents[0], {}, {.meeting_timeout = 100ms}); });

  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.message(), HasSubstr("missing: b, c"));
}

// --- operations ------------------------------------------------------------------------------

TEST_F(ProcessGroupFailures, MistakesOfOneDoNoHarm) {
  in_group([](const ProcessGroup& group, int) {
    const auto refused = [](const auto& f) {
      EXPECT_EQ(error_of(f).code(), ErrorCode::kInvalidArgument);
    };
    refused([&] { group.broadcast(at::ones({1}), 3); });
    refused([&] { group.broadcast(at::ones({1}), -1); });
    refused([&] { group.all_reduce(at::Tensor()); });
    refused([&] { group.all_reduce(at::ones({1}, at::kLong), ReduceOp::kAverage); });
    refused([&] { group.all_reduce(at::ones({1}, at::kComplexFloat), ReduceOp::kMin); });
    refused([&] { group.all_gather(at::Tensor()); });
    refused([&] { group.reduce_scatter({at::ones({1}), at::ones({1})}); });
    refused([&] {
      group.reduce_scatter({at::ones({1}), at::ones({1}, at::kLong), at::ones({1})});
    });

    const at::Tensor tensor = at::ones({1});
    group.all_reduce(tensor);
    expect_full(tensor, 3);
  });
}

void expect_told(const ProcessGroup& group, int rank) {
  const Error error = error_of([&] { group.all_reduce(at::ones({rank == 1 ? 3 : 2})); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("group [a, b, c]"));
  EXPECT_THAT(error.message(), HasSubstr("with 2 elements"));
  EXPECT_THAT(error.message(), HasSubstr("b calls all_reduce (sum) of 1 tensor with 3 elements"));
}

TEST_F(ProcessGroupFailures, DisagreementIsToldToAll) {
  const auto handles = make_group();

  on_all([&](Agent&, size_t rank) {
    expect_told(*handles[rank], static_cast<int>(rank));
    expect_ended(*handles[rank], ErrorCode::kInvalidArgument);
  });
  in_group([](const ProcessGroup& group, int) { group.barrier(); });
}

// Who is told first lets go of the group: the others then hear that it has left, and may hear that
// before they hear why.
TEST_F(ProcessGroupFailures, DisagreementIsToldToAllAlsoByWhoLeaves) {
  for (int round = 0; round < 50; ++round) in_group(&expect_told);
}

TEST_F(ProcessGroupFailures, TimeoutNamesTheMissing) {
  in_group(
      [](const ProcessGroup& group, int rank) {
        if (rank == 2) return test::eventually_ended(group, ErrorCode::kTimeout);
        const Error error = error_of([&] { group.all_reduce(at::ones({2})); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout);
        EXPECT_THAT(error.message(), HasSubstr("missing: c"));
      },
      {.timeout = 300ms});
}

// Who only receives has sent nothing that could tell it.
TEST_F(ProcessGroupFailures, TimeoutOfWhoOnlyReceives) {
  in_group(
      [](const ProcessGroup& group, int rank) {
        if (rank == 0) return test::eventually_ended(group, ErrorCode::kTimeout);
        const Error error = error_soon([&] { return group.broadcast_async(at::ones({2}), 0); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout);
        EXPECT_THAT(error.message(), HasSubstr("missing: a"));
      },
      {.timeout = 300ms});
}

TEST_F(ProcessGroupFailures, WhoLeavesIsMissed) {
  auto handles = make_group();

  on_all([&](Agent&, size_t rank) {
    if (rank == 1) return handles[rank].reset();
    const Error error =
        error_soon([&] { return handles[rank]->all_reduce_async(at::ones({70'000})); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("b was lost"));
    expect_ended(*handles[rank], ErrorCode::kPeerLost);
  });
}

TEST_F(ProcessGroupFailures, TheRootOfABroadcastLeaves) {
  in_group([](ProcessGroup group, int rank) {
    if (rank == 1) return;
    const Error error = error_soon([&] { return group.broadcast_async(at::ones({2}), 1); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
  });
}

TEST_F(ProcessGroupFailures, AMemberIsLost) {
  auto handles = make_group();
  std::vector<Future<void>> sums;
  for (size_t i = 0; i < 2; ++i) sums.push_back(handles[i]->all_reduce_async(at::ones({5})));

  agents[2].shutdown_now();

  for (const auto& sum : sums) {
    ASSERT_TRUE(sum.wait_for(20s));
    EXPECT_EQ(sum.error()->code(), ErrorCode::kPeerLost) << sum.error()->message();
  }
  expect_ended(*handles[2], ErrorCode::kShuttingDown);
  // Those who are left.
  std::thread other([&] { new_group(agents[1], {"a", "b"}).barrier(); });
  new_group(agents[0], {"a", "b"}).barrier();
  other.join();
}

TEST_F(ProcessGroupFailures, ShuttingDownEndsWhatIsGoingOn) {
  auto handles = make_group();
  const Future<void> sum = handles[0]->all_reduce_async(at::ones({5}));
  const Future<void> large = handles[0]->all_reduce_async(at::ones({100'000}));

  agents[0].shutdown_now();

  ASSERT_TRUE(sum.wait_for(20s) && large.wait_for(20s));
  EXPECT_EQ(sum.error()->code(), ErrorCode::kShuttingDown);
  EXPECT_EQ(large.error()->code(), ErrorCode::kShuttingDown);
  EXPECT_EQ(error_of([&] { new_group(agents[0], {"a"}); }).code(), ErrorCode::kShuttingDown);
}

TEST_F(ProcessGroupFailures, GracefulShutdownWithGroupsAlive) {
  auto handles = make_group();
  on_all([&](Agent&, size_t rank) { handles[rank]->barrier(); });
  std::vector<Future<void>> sums;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < 3; ++i) {
    tensors.push_back(at::ones({100'000}));
    sums.push_back(handles[i]->all_reduce_async(tensors[i]));
  }

  agents.shut_down();

  // It waited for them.
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(sums[i].ready());
    EXPECT_FALSE(sums[i].error()) << sums[i].error()->message();
    expect_full(tensors[i], 3);
  }
  for (const auto& handle : handles) expect_ended(*handle, ErrorCode::kShuttingDown);
}

TEST(ProcessGroup, OutlivesItsAgent) {
  std::optional<ProcessGroup> group;
  {
    test::LoopbackGroup agents({"a"});
    group = new_group(agents[0]);
    agents.shut_down();
  }

  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(error_of([&] { group->barrier(); }).code(), ErrorCode::kShuttingDown);
}

// A future that is waited for keeps the group: its handles may go.
TEST_F(ProcessGroupFailures, HandlesMayGoWhileAnOperationGoesOn) {
  auto handles = make_group();
  std::vector<at::Tensor> tensors;
  std::vector<Future<void>> sums;
  for (size_t i = 0; i < 3; ++i) {
    tensors.push_back(at::ones({1}));
    sums.push_back(handles[i]->all_reduce_async(tensors[i]));
    handles[i].reset();
  }

  for (const auto& sum : sums) {
    ASSERT_TRUE(sum.wait_for(20s));
    EXPECT_FALSE(sum.error());
  }
  for (const at::Tensor& tensor : tensors) expect_full(tensor, 3);
}

// --- what other members send ------------------------------------------------------------------

using Awaited = collective::Channel::Awaited;

collective::Chunk chunk_for(const collective::ChannelId& channel) {
  collective::Chunk chunk;
  chunk.channel = channel;
  return chunk;
}

TEST_F(ProcessGroupFailures, PartsForNobodyAreRefused) {
  using collective::ChannelId;
  auto handles = make_group();
  const uint64_t id = handles[0]->group()->id();
  const auto send = [&](const ChannelId& channel) {
    return agents[1].sync<collective::sys_collective_chunk>("a", chunk_for(channel));
  };

  EXPECT_TRUE(send({id + 1, 0}).gone);
  EXPECT_TRUE(send({id, 5000}).gone);
  EXPECT_TRUE(agents[1]
                  .sync<collective::sys_collective_attends>("a", ChannelId{id + 1, 0}, Awaited())
                  .gone);
  agents[1].sync<collective::sys_collective_fail>("a", ChannelId{id + 1, 0}, 1, "not yours");
  on_all([&](Agent&, size_t rank) { handles[rank]->barrier(); });

  // Of a code that there is not.
  agents[1].sync<collective::sys_collective_fail>("a", ChannelId{id, 0}, 250, "strange");
  expect_ended(*handles[0], ErrorCode::kBadMessage);
}

TEST_F(ProcessGroupFailures, AMemberIsNotGoneWhileItsChunkIsOnItsWay) {
  auto handles = make_group();
  const collective::ChannelId channel{handles[0]->group()->id(), 0};
  auto& groups = collective::ProcessGroups::of(*detail::AgentAccess::core(agents[0]));
  const auto is_gone_for = [&](size_t asker) {
    return agents[asker].sync<collective::sys_collective_attends>("a", channel, Awaited()).gone;
  };
  auto one = groups.begin_sending(channel, agents[1].info().id);
  auto other = groups.begin_sending(channel, agents[1].info().id);
  handles[0].reset();

  EXPECT_FALSE(is_gone_for(1));
  EXPECT_TRUE(is_gone_for(2));
  one.reset();
  EXPECT_FALSE(is_gone_for(1));
  other.reset();
  EXPECT_TRUE(is_gone_for(1));
}

// It had all it wanted: a chunk that it gets now is one that it has had already.
TEST_F(ProcessGroupFailures, AMemberThatHasLeftWithoutAnErrorNeedsNoChunk) {
  auto handles = make_group();
  const collective::ChannelId channel{handles[0]->group()->id(), 0};
  handles[1].reset();
  std::promise<void> arrived;

  collective::send_chunk(*detail::AgentAccess::core(agents[0]), agents[1].info(),
                         {chunk_for(channel)}, [&] { arrived.set_value(); });

  EXPECT_EQ(arrived.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_FALSE(handles[0]->group()->channel().failure());
}

TEST_F(ProcessGroupFailures, WhoIsNoMemberHasNoSay) {
  std::optional<ProcessGroup> first;
  std::thread other([&] { new_group(agents[1], {"a", "b"}).barrier(); });
  first = new_group(agents[0], {"a", "b"});
  first->barrier();
  other.join();
  const collective::ChannelId channel{first->group()->id(), 0};

  agents[2].sync<collective::sys_collective_fail>("a", channel, 7, "ha");
  EXPECT_TRUE(agents[2].sync<collective::sys_collective_attends>("a", channel, Awaited()).gone);
  EXPECT_TRUE(agents[2].sync<collective::sys_collective_chunk>("a", chunk_for(channel)).gone);

  EXPECT_FALSE(first->group()->channel().failure());
}

}  // namespace
}  // namespace weft::process_group_failures
