// Device channels whose members leave or are late, or whose devices fail.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective/process_groups.h"
#include "unit/collective/device_channel_scene.h"

namespace weft::device_lane_test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class DeviceChannelFailures : public DeviceChannelScene {};

// --- devices that fail ------------------------------------------------------------------------

TEST_F(DeviceChannelFailures, IsAbortedWhenTheChannelFails) {
  std::atomic<bool> aborting{false}, go_on{false};
  fabric->members[0].hangs_at = 1;
  fabric->members[0].on_abort = [&] {
    aborting = true;
    EXPECT_TRUE(eventually([&] { return go_on.load(); }));
  };

  on_device_channels([&](const Member& member) {
    in_time(member.all_reduce({at::ones({2})}));
    const Future<Outcome> hangs = member.all_reduce({at::ones({2})});
    EXPECT_TRUE(eventually([&] { return fabric->begun() == 6; }));
    if (member.rank == 0) {
      member.channel->fail_and_tell(Error(ErrorCode::kPeerLost, "d was lost"));
      EXPECT_TRUE(eventually([&] { return aborting.load(); }));
      EXPECT_FALSE(hangs.ready()) << "the device may still write";
      go_on = true;
    }

    EXPECT_EQ(error_in_time([&] { return hangs; }).message(), "d was lost");
    EXPECT_TRUE(member.rank != 0 || of(member).aborted == 1);
    EXPECT_EQ(error_of([&] { member.all_reduce({at::ones({2})}); }).message(), "d was lost");
    EXPECT_EQ(of(member).begun, 2u);
  });
}

class DeviceChannelOnFire : public DeviceChannelScene {
 protected:
  [[noreturn]] static void burn() { throw Error(ErrorCode::kPeerLost, "the device is on fire"); }
  static void expect_fire(const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("the device is on fire"));
  }
  // In the second operation.
  void expect_told() {
    on_device_channels([](const Member& member) {
      in_time(member.all_reduce({at::ones({2})}));
      expect_fire(error_in_time([&] { return member.all_reduce({at::ones({2})}); }));
      expect_fire(error_of([&] { member.all_reduce({at::ones({2})}); }));
    });
    EXPECT_EQ(fabric->members[2].aborted, 1u);
  }
};

TEST_F(DeviceChannelOnFire, WhenItMeets) {
  const std::pair<size_t, std::string> steps[] = {
      {2, "identity"}, {1, "fits"}, {0, "invitation"}, {2, "connecting"}};
  for (const auto& [who, where] : steps) {
    fabric = std::make_shared<Fabric>(3);
    fabric->members[who].on_meeting = [&](const std::string& step) {
      if (step == where) burn();
    };
    on_channels([&](const Member& member) { expect_fire(error_of([&] { meet(member); })); });
  }
}

// As libtorch throws.
TEST_F(DeviceChannelOnFire, WithAnotherErrorWhenItMeets) {
  for (const std::string where : {"identity", "connecting"}) {
    fabric = std::make_shared<Fabric>(3);
    fabric->members[2].on_meeting = [&](const std::string& step) {
      if (step == where) throw std::runtime_error("the device is on fire");
    };
    on_channels([&](const Member& member) {
      try {
        meet(member);
        ADD_FAILURE() << "no error";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("the device is on fire"));
      }
    });
  }
}

TEST_F(DeviceChannelOnFire, WhenItBegins) {
  fabric->members[2].on_begin = [](size_t number) { number == 1 ? burn() : void(); };
  expect_told();
}

TEST_F(DeviceChannelOnFire, WhenItIsAsked) {
  fabric->members[2].on_poll = [](size_t number) { number == 1 ? burn() : void(); };
  expect_told();
}

// Who is lost is known to the channel, if only a little later.
TEST_F(DeviceChannelOnFire, BecauseSomebodyIsLost) {
  std::shared_ptr<Channel> of_another;
  fabric->members[1].on_poll = [&](size_t) {
    of_another->fail_and_tell(Error(ErrorCode::kPeerLost, "d was lost"));
    burn();
  };
  on_device_channels([&](const Member& member) {
    if (member.rank == 0) of_another = member.channel;
    in_time(member.barrier());
    EXPECT_EQ(error_in_time([&] { return member.all_reduce({at::ones({2})}); }).message(),
              "d was lost");
  });
}

// --- members that leave or are late ------------------------------------------------------------

TEST_F(DeviceChannelFailures, AMemberLeavesWhileTheDeviceHangs) {
  fabric->members[1].hangs_at = 0;

  on_all([&](Agent& agent, size_t rank) {
    std::optional<ProcessGroup> group = new_group(agent, {}, {.timeout = kBound});
    Member member{static_cast<int>(rank), group->group()->open_channel()};
    member.device_channel = meet(member);
    const Future<Outcome> hangs = member.all_reduce({at::ones({2})});
    EXPECT_TRUE(eventually([&] { return fabric->begun() == 3; }));

    if (rank == 1) group.reset();

    const Error error = error_in_time([&] { return hangs; });
    if (rank == 1) {
      EXPECT_THAT(error.message(), HasSubstr("the group was destroyed"));
    } else {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
      EXPECT_THAT(error.message(), HasSubstr("b was lost"));
    }
  });

  EXPECT_EQ(fabric->members[1].aborted, 1u);
}

// One hangs, some wait for it, and one waits for other members.
TEST_F(DeviceChannelFailures, IsDestroyedWhileOperationsArePending) {
  std::atomic<size_t> started{0};
  fabric->members[0].hangs_at = 0;

  on_device_channels([&](Member& member) {
    std::vector<Future<Outcome>> pending;
    for (size_t i = 0; i < (member.rank == 0 ? 4 : 3); ++i) {
      pending.push_back(member.all_reduce({at::ones({2})}));
    }
    wait_for_all(started);
    if (member.rank == 0) {
      EXPECT_TRUE(eventually([&] { return of(member).begun == 1; }));
      member.device_channel.reset();
    }

    for (const auto& each : pending) {
      const Error error = error_in_time([&] { return each; });
      EXPECT_THAT(error.message(), HasSubstr("destroyed"));
    }
  });

  for (const auto& each : fabric->members) EXPECT_EQ(each.aborted, 1u);
}

TEST_F(DeviceChannelFailures, IsDestroyedBeforeTheOthersBegin) {
  std::atomic<bool> destroyed{false};

  on_device_channels([&](Member& member) {
    std::optional<Future<Outcome>> pending;
    if (member.rank == 0) {
      pending = member.all_reduce({at::ones({2})});
      member.device_channel.reset();
      destroyed = true;
    }
    EXPECT_TRUE(eventually([&] { return destroyed.load(); }));

    const Error error =
        error_in_time([&] { return pending ? *pending : member.all_reduce({at::ones({2})}); });

    EXPECT_THAT(error.message(), HasSubstr("destroyed"));
  });

  EXPECT_EQ(fabric->members[0].begun, 0u);
}

TEST_F(DeviceChannelFailures, WhoDoesNotBeginIsNamed) {
  on_device_channels(
      [](const Member& member) {
        if (member.rank == 2) {
          EXPECT_TRUE(eventually([&] { return member.channel->failure().has_value(); }));
        }
        const Error error = error_in_time([&] { return member.all_reduce({at::ones({2})}); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout);
        EXPECT_THAT(error.message(), HasSubstr("missing: c"));
      },
      1s);

  EXPECT_EQ(fabric->begun(), 0u);
}

TEST_F(DeviceChannelFailures, ADeviceThatHangsIsGivenUpInTime) {
  fabric->members[0].hangs_at = 0;

  on_device_channels(
      [&](const Member& member) {
        const Error error = error_in_time([&] { return member.all_reduce({at::ones({2})}); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.message();
        EXPECT_TRUE(member.rank != 0 || of(member).aborted == 1);
      },
      1s);
}

TEST_F(DeviceChannelFailures, AContinuationMayHaveTheLastReference) {
  on_device_channels([&](Member& member) {
    const at::Tensor sum = at::ones({2});
    const auto last = std::make_shared<std::shared_ptr<DeviceChannel>>();
    const Future<Outcome> reduced = member.all_reduce({sum});
    *last = std::move(member.device_channel);
    const Future<Outcome> after = reduced.then([last](const Outcome& outcome) {
      last->reset();
      return outcome;
    });

    in_time(after);
    expect_full(sum, 3);
    EXPECT_TRUE(eventually([&] { return of(member).alive == 0; }));
    in_time(member.barrier());
  });
}

// Some end well, some do not: whichever it is, the tensors are the caller's from then on.
TEST_F(DeviceChannelFailures, NothingIsWrittenOnceAnOperationIsOver) {
  for (size_t round = 0; round < 40; ++round) {
    fabric = std::make_shared<Fabric>(3);
    on_device_channels([&](Member& member) {
      Tensors tensors;
      std::vector<Future<Outcome>> outcomes;
      const auto spoil_what_is_over = [&] {
        for (size_t i = 0; i < outcomes.size(); ++i) {
          if (outcomes[i].ready()) tensors[i].fill_(-1);
        }
      };
      while (tensors.size() < 30 && !member.channel->failure()) {
        tensors.push_back(at::ones({1000}));
        try {
          outcomes.push_back(member.all_reduce({tensors.back()}));
        } catch (const Error&) {
          break;
        }
        spoil_what_is_over();
        if (static_cast<size_t>(member.rank) != round % 3 || of(member).begun < round / 3) continue;
        if (round % 2 == 0) {
          member.channel->fail_and_tell(Error(ErrorCode::kPeerLost, "d was lost"));
        } else {
          member.device_channel.reset();
          break;
        }
      }
      for (const auto& each : outcomes) EXPECT_TRUE(each.wait_for(kBound));
      spoil_what_is_over();
      member.channel->fail_and_tell(Error(ErrorCode::kCancelled, "nobody begins the rest"));
      member.device_channel.reset();
      for (size_t i = 0; i < outcomes.size(); ++i) expect_full(tensors[i], -1);
    });
  }
}

// A member that closes its channel and then leaves has told everybody why, but that message may be
// on its way when the others ask.
TEST_F(DeviceChannelFailures, TheCauseIsKnownAlsoWhenTheGroupIsGone) {
  on_all([&](Agent& agent, size_t rank) {
    std::optional<ProcessGroup> group = new_group(agent, {}, {.timeout = kBound});
    const auto channel = group->group()->open_channel();
    const collective::ChannelId id{group->group()->id(), 1};
    if (rank != 0) return;
    channel->fail(Error(ErrorCode::kPeerLost, "the device is on fire"));

    group->group()->close_channel(*channel);
    group.reset();

    auto& groups = collective::ProcessGroups::of(*detail::AgentAccess::core(agent));
    EXPECT_EQ(groups.why_gone(id).cause, "the device is on fire");
  });
}

// --- alone -----------------------------------------------------------------------------------

// Without a sink: continuations of an operation run on the thread of the device channel.
class Nobody final : public Channel::Outside {
 public:
  base::Time now() const override { return std::chrono::steady_clock::now(); }
  void send(int, const collective::Chunk&, bool, std::function<void()>) override {}
  void later(std::function<void()> task) override { task(); }
  void watch() override {}
  void tell_failed(const Error&) override {}
  std::string name(int) const override { return "a"; }
  std::string group_name() const override { return "group [a]"; }
};

class DeviceChannelAlone : public testing::Test {
 protected:
  DeviceChannelAlone() {
    member.device_channel = DeviceChannel::meet(member.channel, at::kCPU, fabric->comm(0));
    fabric->held = true;
  }
  // The device channel's last reference goes where the outcome comes from.
  std::shared_ptr<std::atomic<bool>> let_go_at(const Future<Outcome>& outcome) {
    const auto gone = std::make_shared<std::atomic<bool>>(false);
    outcome.on_ready(
        [gone,
         last = std::make_shared<std::shared_ptr<DeviceChannel>>(std::move(member.device_channel)),
         test = std::this_thread::get_id()](const auto&) {
          EXPECT_NE(std::this_thread::get_id(), test);
          last->reset();
          *gone = true;
        });
    return gone;
  }
  void expect_gone(const std::shared_ptr<std::atomic<bool>>& gone) const {
    EXPECT_TRUE(eventually([&] { return gone->load() && fabric->members[0].alive == 0; }));
  }

  const std::shared_ptr<Fabric> fabric = std::make_shared<Fabric>(1);
  Member member{0, std::make_shared<Channel>(collective::ChannelId{1, 0}, 0, 1, kBound,
                                             std::make_shared<Nobody>())};
};

TEST_F(DeviceChannelAlone, TheThreadOfTheLaneMayEndIt) {
  const Future<Outcome> reduced = member.all_reduce({at::ones({2})});
  const auto gone = let_go_at(reduced);

  fabric->held = false;

  in_time(reduced);
  expect_gone(gone);
}

TEST_F(DeviceChannelAlone, TheThreadOfTheLaneMayEndItWhenAnOperationFails) {
  const Future<Outcome> first = member.all_reduce({at::ones({2})});
  const Future<Outcome> second = member.all_reduce({at::ones({2})});
  const auto gone = let_go_at(first);

  member.channel->fail(Error(ErrorCode::kPeerLost, "d was lost"));

  EXPECT_EQ(error_in_time([&] { return first; }).message(), "d was lost");
  EXPECT_EQ(error_in_time([&] { return second; }).message(), "d was lost");
  expect_gone(gone);
}

// Not one of those that waited for it.
TEST_F(DeviceChannelAlone, TheOperationThatFailedIsNamed) {
  std::atomic<bool> fails{false};
  fabric->members[0].on_poll = [&](size_t) {
    if (fails) throw std::runtime_error("the device is on fire");
  };
  std::vector<Future<Outcome>> pending;
  for (int64_t i = 1; i < 4; ++i) pending.push_back(member.all_reduce({at::ones({i})}));

  fails = true;

  for (const auto& each : pending) {
    const Error error = error_in_time([&] { return each; });
    EXPECT_THAT(error.message(), HasSubstr("the device is on fire"));
    EXPECT_THAT(error.message(), HasSubstr("with 1 elements"));
  }
}

}  // namespace
}  // namespace weft::device_lane_test
