// What goes wrong in a backward pass, and what it leaves behind.
// SPDX-License-Identifier: BSD-3-Clause
#include <optional>

#include "autograd_scene.h"

namespace weft::behaviour_autograd {

// --- 37: errors --------------------------------------------------------------------------------

class Behaviour37_Errors : public Behaviour {
 protected:
  at::Tensor broken_there(const at::Tensor& x) { return a.sync<broken_backward>("b", x); }
};

TEST_F(Behaviour37_Errors, OfTheCallerAreNamedAndChangeNothing) {
  const at::Tensor x = leaf({3});
  Context context(a);
  const auto wrong = ErrorCode::kInvalidArgument;
  EXPECT_THAT([&] { context.backward({}); }, fails_with(wrong, "without roots"));
  EXPECT_THAT([&] { context.backward({x}); }, fails_with(wrong, "scalar"));
  EXPECT_THAT([&] { context.backward({at::ones({})}); }, fails_with(wrong, "requires no gradient"));
  EXPECT_THAT([&] { context.backward({at::Tensor()}); }, fails_with(wrong, "undefined"));
  EXPECT_THAT([&] { context.backward({x.sum()}, {.timeout = -1s}); }, fails_with(wrong));
  context.backward({a.sync<product>("b", x, x).sum()});
  EXPECT_TRUE(same(context.gradient(x), 2 * x));
}

TEST_F(Behaviour37_Errors, DeepInAChainEndThePassEverywhere) {
  const at::Tensor x = leaf({});
  {
    Context context(a);
    const at::Tensor loss = a.sync<breaks_at_the_end>("b", x, std::vector<int>{2, 3});
    EXPECT_THAT([&] { context.backward({loss}); },
                Throws<Error>(AllOf(Property(&Error::code, ErrorCode::kContextAborted),
                                    Property(&Error::message, HasSubstr("no gradient today")),
                                    Property(&Error::message, HasSubstr("d: ")))));
    EXPECT_THAT([&] { context.gradient(x); }, fails_with(ErrorCode::kContextAborted));
    EXPECT_THAT([&] { a.sync<identity>("b", x); },
                fails_with(ErrorCode::kContextAborted, "no gradient today"));
    EXPECT_TRUE(eventually(
        [&] { return census(b).messages + census(c).messages + census(group[3]).messages == 0; }));
  }
  EXPECT_TRUE(all_forgotten());
  Context context(a);  // all is well again
  context.backward({a.sync<product>("d", x, x)});
  EXPECT_TRUE(same(context.gradient(x), 2 * x));
}

TEST_F(Behaviour37_Errors, ASecondPassThroughAFreedGraphIsOne) {
  const at::Tensor x = leaf({3});
  Context context(a);
  const at::Tensor loss = a.sync<product>("b", x, x).sum();
  context.backward({loss});
  EXPECT_THAT([&] { context.backward({loss}); },
              fails_with(ErrorCode::kContextAborted, "backward through the graph a second time"));
}

TEST_F(Behaviour37_Errors, ATensorOfAnotherContextIsOne) {
  const at::Tensor x = leaf({3});
  at::Tensor kept;
  {
    const Context context(a);
    kept = a.sync<product>("b", x, x);
  }
  Context context(a);
  EXPECT_THAT([&] { context.backward({(kept * x).sum()}); },
              fails_with(ErrorCode::kInvalidArgument, "detach()"));
  EXPECT_THROW((kept * x).sum().backward(), std::exception);
}

TEST_F(Behaviour37_Errors, OnTheDriverEndThePassElsewhereToo) {
  at::Tensor x = leaf({});
  x.register_hook([](const at::Tensor&) { throw std::out_of_range("not here"); });
  Context context(a);
  const at::Tensor loss = a.sync<call_on>("b", x, x, std::vector<int>{2});
  EXPECT_THAT([&] { context.backward({loss}); },
              fails_with(ErrorCode::kContextAborted, "not here"));
  EXPECT_TRUE(eventually([&] { return census(b).messages + census(c).messages == 0; }));
}

// A view whose base was changed: torch refuses to say what its gradient is.
std::vector<at::Tensor> stale_views(const at::Tensor& x) {
  at::Tensor base = x * 2;
  std::vector<at::Tensor> views = base.chunk(2);
  base.mul_(2);
  return views;
}
at::Tensor stale_view(at::Tensor x) { return stale_views(x)[0]; }

TEST_F(Behaviour37_Errors, AResultThatCannotBeRecordedIsTheCallersError) {
  Context context(a);
  EXPECT_THAT([&] { a.sync<stale_view>(Destination("b", 5s), leaf({4})); },
              fails_with(ErrorCode::kRemoteError, "view"));
  EXPECT_THAT([&] { context.backward({stale_views(leaf({2}))[0]}); },
              fails_with(ErrorCode::kInvalidArgument, "view"));
  const at::Tensor x = leaf({3});
  context.backward({a.sync<product>("b", x, x).sum()});
  EXPECT_TRUE(same(context.gradient(x), 2 * x));
}

TEST_F(Behaviour37_Errors, APassInsideAPassIsOne) {
  const at::Tensor x = leaf({3});
  Context context(a);
  at::Tensor y = x * 2;
  std::optional<ErrorCode> seen;
  y.register_hook([&](const at::Tensor&) {
    try {
      context.backward({x.sum()});
    } catch (const Error& error) {
      seen = error.code();
    }
  });
  context.backward({a.sync<product>("b", y, y).sum()});
  EXPECT_EQ(seen, ErrorCode::kInvalidArgument);
}

TEST_F(Behaviour37_Errors, AReferenceWhoseOwnerIsGoneIsOne) {
  const at::Tensor x = leaf({});
  Context context(a);
  const RRef<at::Tensor> z = remote<product>(a, "b", x, x);
  z.to_here();
  b.shutdown_now();
  EXPECT_THAT([&] { z.backward(context); }, fails_with(ErrorCode::kContextAborted, "b"));
}

TEST_F(Behaviour37_Errors, AReferenceThatCouldNotBeMadeIsOne) {
  for (const bool known : {false, true}) {
    Context context(a);
    const RRef<at::Tensor> z = remote<throws>(a, "b", leaf({}));
    if (known) {
      EXPECT_THROW(z.to_here(), Error);
    }
    EXPECT_THAT([&] { z.backward(context); },
                fails_with(ErrorCode::kContextAborted, "no result today"));
  }
}

// The driver is at its own part meanwhile, one node after the other.
TEST_F(Behaviour37_Errors, ElsewhereStopTheDriversOwnPart) {
  const at::Tensor x = leaf({});
  int steps = 0;
  at::Tensor own = x;
  for (int i = 0; i < 5000; ++i) {
    own = own * 1;
    own.register_hook([&steps](const at::Tensor&) {
      ++steps;
      std::this_thread::sleep_for(1ms);  // a node that takes its time
    });
  }
  Context context(a);
  // Newer nodes run first: the branch over b does.
  const at::Tensor loss = own + broken_there(x);
  const auto start = Clock::now();
  EXPECT_THAT([&] { context.backward({loss}); },
              fails_with(ErrorCode::kContextAborted, "no gradient today"));
  EXPECT_LT(Clock::now() - start, 1s * test::kSlowness);
  EXPECT_LT(steps, 5000);
}

TEST_F(Behaviour37_Errors, ATimeoutStopsTheDriversOwnPart) {
  const at::Tensor x = leaf({});
  at::Tensor own = x;
  for (int i = 0; i < 2000; ++i) {
    own = own * 1;
    own.register_hook([](const at::Tensor&) { std::this_thread::sleep_for(1ms); });
  }
  Context context(a);
  const auto start = Clock::now();
  EXPECT_THAT([&] { context.backward({own}, {.timeout = 50ms}); },
              fails_with(ErrorCode::kContextAborted, "timeout"));
  EXPECT_LT(Clock::now() - start, 1s * test::kSlowness);
}

TEST_F(Behaviour37_Errors, ACallThatWasRefusedIsNot) {
  Options options;
  options.max_call_depth = 2;
  test::LoopbackGroup shallow({"a", "b"}, options);
  Agent& driver = shallow[0];
  const at::Tensor x = leaf({3});
  Context context(driver);
  EXPECT_THAT([&] { driver.sync<throws>("b", x); }, fails_with(ErrorCode::kRemoteError));
  EXPECT_THAT(
      [&] {
        driver.sync<call_on>("b", x, x, std::vector<int>{0, 1, 0, 1});
      },
      fails_with(ErrorCode::kRemoteError, "calls nest"));
  context.backward({driver.sync<product>("b", x, x).sum()});
  EXPECT_TRUE(same(context.gradient(x), 2 * x));
}

TEST_F(Behaviour37_Errors, AShutDownWorkerIsOne) {
  const at::Tensor x = leaf({3});
  Context context(a);
  const at::Tensor loss = a.sync<call_on>("b", x, x, std::vector<int>{2}).sum();
  c.shutdown_now();
  const auto start = Clock::now();
  EXPECT_THAT([&] { context.backward({loss}); }, fails_with(ErrorCode::kContextAborted, "c"));
  EXPECT_LT(Clock::now() - start, 1s * test::kSlowness);
}

}  // namespace weft::behaviour_autograd
