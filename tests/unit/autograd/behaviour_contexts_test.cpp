// What an autograd context records, and where it exists.
// SPDX-License-Identifier: BSD-3-Clause
#include <set>

#include <c10/core/GradMode.h>

#include "autograd_scene.h"

namespace weft::behaviour_autograd {

// --- 34: what is recorded ----------------------------------------------------------------------

using Behaviour34_WhatIsRecorded = Behaviour;

TEST_F(Behaviour34_WhatIsRecorded, OneMessageEachWayForACall) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  const Context context(a);
  const at::Tensor z = a.sync<product>("b", x, y);
  EXPECT_TRUE(z.requires_grad());
  EXPECT_FALSE(z.is_leaf());
  EXPECT_EQ(census(a).messages, 1u);
  EXPECT_EQ(census(b).messages, 1u);
}

TEST_F(Behaviour34_WhatIsRecorded, NothingWithoutGradients) {
  const Context context(a);
  const at::Tensor z = a.sync<product>("b", leaf({3}).detach(), at::ones({3}, at::kDouble));
  EXPECT_FALSE(z.requires_grad());
  EXPECT_EQ(census(a).messages + census(b).messages, 0u);
}

TEST_F(Behaviour34_WhatIsRecorded, NothingOutsideAContext) {
  const at::Tensor z = a.sync<product>("b", leaf({3}), leaf({3}));
  EXPECT_TRUE(z.is_leaf());  // as ever
  EXPECT_FALSE(a.sync<in_a_context>("b"));
  EXPECT_EQ(census(a).contexts + census(b).contexts, 0u);
}

TEST_F(Behaviour34_WhatIsRecorded, RemoteSendsTheArgumentsAndFetchingTheResult) {
  const Context context(a);
  const RRef<at::Tensor> z = remote<product>(a, "b", leaf({3}), leaf({3}));
  EXPECT_TRUE(eventually([&] { return z.confirmed_by_owner(); }));
  EXPECT_EQ(census(a).messages, 1u);
  EXPECT_EQ(census(b).messages, 0u);
  EXPECT_FALSE(z.to_here().is_leaf());
  EXPECT_EQ(census(b).messages, 1u);
}

TEST_F(Behaviour34_WhatIsRecorded, NestedCallsJoin) {
  const Context context(a);
  a.sync<call_on>("b", leaf({3}), leaf({3}), std::vector<int>{2});
  EXPECT_EQ(census(a).messages, 1u);
  EXPECT_EQ(census(b).messages, 2u);  // on to c, back to a
  EXPECT_EQ(census(c).messages, 1u);
}

TEST_F(Behaviour34_WhatIsRecorded, ACallToOneselfToo) {
  const Context context(a);
  const at::Tensor x = leaf({3}), y = leaf({3});
  EXPECT_FALSE(a.sync<product>("a", x, y).is_leaf());
  EXPECT_EQ(census(a).messages, 2u);
  EXPECT_EQ(census(a).contexts, 1u);
}

TEST_F(Behaviour34_WhatIsRecorded, NothingWhileGradientsAreOff) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  at::Tensor unrecorded;
  {
    const c10::AutoGradMode off(false);
    unrecorded = a.sync<product>("b", x, y);
    EXPECT_FALSE(a.sync<in_a_context>("b"));
  }
  EXPECT_FALSE(unrecorded.requires_grad());
  EXPECT_EQ(census(a).messages + census(b).contexts, 0u);
  context.backward({(a.sync<product>("b", x, y) * unrecorded).sum()});
  EXPECT_TRUE(same(context.gradient(x), y * unrecorded));
  EXPECT_EQ(context.gradients().size(), 2u);
}

// --- 35: contexts ------------------------------------------------------------------------------

using Behaviour35_Contexts = Behaviour;

TEST_F(Behaviour35_Contexts, IdsAreTheSameOnAllWorkersAndNeverRepeat) {
  std::set<int64_t> ids;
  for (size_t driver = 0; driver < 3; ++driver) {
    for (int i = 0; i < 10; ++i) {
      const Context context(group[driver]);
      EXPECT_TRUE(ids.insert(context.id()).second);
      EXPECT_EQ(group[driver].sync<context_id>("d"), context.id());
    }
  }
}

TEST_F(Behaviour35_Contexts, DoNotNest) {
  const Context context(a);
  EXPECT_THAT([&] { Context another(a); },
              fails_with(ErrorCode::kInvalidArgument, std::to_string(context.id())));
  EXPECT_THAT([&] { a.sync<[] { Context another; }>("b"); },
              Throws<Error>(Property(&Error::remote_text, HasSubstr("do not nest"))));
  EXPECT_EQ(autograd::current_context_id(), context.id());
}

TEST_F(Behaviour35_Contexts, EndOnAllWorkersTheyReached) {
  {
    const Context context(a);
    a.sync<call_on>("b", leaf({3}), leaf({3}), std::vector<int>{2, 3, 0, 1});
    EXPECT_EQ(census(group[3]).contexts, 1u);
  }
  EXPECT_TRUE(all_forgotten());
  EXPECT_FALSE(autograd::current_context_id().has_value());
}

TEST_F(Behaviour35_Contexts, EndAfterAnErrorToo) {
  EXPECT_THAT(
      [&] {
        const Context context(a);
        a.sync<throws>("b", leaf({3}));
      },
      fails_with(ErrorCode::kRemoteError, "no result today"));
  EXPECT_TRUE(all_forgotten());
}

TEST_F(Behaviour35_Contexts, UnknownOnesAreNamed) {
  EXPECT_THAT([&] { autograd::gradient(b, 4711, leaf({1})); },
              fails_with(ErrorCode::kInvalidArgument, "4711"));
}

TEST_F(Behaviour35_Contexts, ContinuationsInheritThem) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  const at::Tensor loss =
      a.async<product>("b", x, y)
          .then([this, x](const at::Tensor& z) { return a.async<product>("c", z, x); })
          .wait()
          .sum();
  context.backward({loss});
  EXPECT_TRUE(same(context.gradient(x), 2 * x * y));
}

// Nobody asks after the context meanwhile: c's next question to the creator is minutes away.
TEST(Behaviour34_ContextsOfOthers, EndAsSoonAsAnythingFindsTheirCreatorGone) {
  Options options;
  options.rref_lease = std::chrono::minutes(10);
  test::LoopbackGroup group({"a", "b", "c"}, options);
  const Context context(group[0]);
  group[0].sync<product>("c", leaf({3}), leaf({3}));
  ASSERT_EQ(census(group[2]).contexts, 1u);

  group[0].shutdown_now();

  EXPECT_THROW(group[2].sync<product>("a", leaf({3}), leaf({3})), Error);
  EXPECT_TRUE(eventually([&] { return census(group[2]).contexts == 0; }));
}

}  // namespace weft::behaviour_autograd
