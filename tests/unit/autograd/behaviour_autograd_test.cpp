// Behaviours 34 to 37 of the forty, and what goes beyond them: distributed autograd, over the
// loopback transport.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/sanitizers.h"
#include "weft/autograd.h"

namespace weft::behaviour_autograd {

using namespace std::chrono_literals;
using autograd::BackwardOptions;
using autograd::census;
using autograd::Context;
using autograd::Mode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using Clock = std::chrono::steady_clock;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }
auto fails_with(ErrorCode code, const std::string& text) {
  return Throws<Error>(
      AllOf(Property(&Error::code, code), Property(&Error::message, HasSubstr(text))));
}

bool eventually(const std::function<bool()>& condition) {
  for (const auto limit = Clock::now() + 10s; Clock::now() < limit;) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

at::Tensor leaf(at::IntArrayRef sizes, double first = 1) {
  const at::Tensor values = at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble);
  return (values.reshape(sizes) * first).set_requires_grad(true);
}
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && at::allclose(a, b);
}

// Functions to call.
at::Tensor product(at::Tensor a, at::Tensor b) { return a * b; }
at::Tensor first_of(std::vector<at::Tensor> some) { return some.at(0) * 2; }
at::Tensor identity(at::Tensor x) { return x; }
at::Tensor call_on(at::Tensor x, at::Tensor y, std::vector<int> path) {
  if (path.empty()) return x * y;
  const int next = path.front();
  path.erase(path.begin());
  return current_agent().sync<call_on>(next, x + 1, y, path) * 2;
}
at::Tensor call_on_locally(const at::Tensor& x, const at::Tensor& y, int depth) {
  return depth == 0 ? x * y : call_on_locally(x + 1, y, depth - 1) * 2;
}
bool in_a_context() { return autograd::current_context_id().has_value(); }
int64_t context_id() { return autograd::current_context_id().value_or(-1); }
at::Tensor broken_backward(at::Tensor x) {
  at::Tensor y = x * 2;
  y.register_hook([](const at::Tensor&) { throw std::out_of_range("no gradient today"); });
  return y;
}
at::Tensor breaks_at_the_end(at::Tensor x, std::vector<int> path) {
  if (path.empty()) return broken_backward(x);
  const int next = path.front();
  path.erase(path.begin());
  return current_agent().sync<breaks_at_the_end>(next, x * 2, path);
}
at::Tensor throws(at::Tensor) { throw std::runtime_error("no result today"); }
at::Tensor dropped_out(at::Tensor x) { return at::dropout(x, 0.5, /*train=*/true); }

class Behaviour : public testing::Test {
 protected:
  test::LoopbackGroup group{{"a", "b", "c", "d"}};
  Agent& a = group[0];
  Agent& b = group[1];
  Agent& c = group[2];

  bool all_forgotten() {
    return eventually([this] {
      for (size_t i = 0; i < group.size(); ++i) {
        if (census(group[i]).contexts > 0) return false;
      }
      return true;
    });
  }
};

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

// --- 36: right gradients -----------------------------------------------------------------------

using Behaviour36_Gradients = Behaviour;

TEST_F(Behaviour36_Gradients, AreThoseOfALocalRunInEveryMode) {
  const at::Tensor x = leaf({2, 3}), y = leaf({2, 3}, 0.5);
  const std::vector<std::function<at::Tensor()>> ways{
      [&] { return product(x, y); },
      [&] { return a.sync<product>("b", x, y); },
      [&] { return a.async<product>("b", x, y).wait(); },
      [&] { return remote<product>(a, "b", x, y).to_here(); },
      [&] { return remote<product>(a, "a", x, y).to_here(); },
      [&] { return a.sync<product>("a", x, y); },
      [&] { return a.sync<identity>("c", a.sync<product>("b", a.sync<identity>("d", x), y)); },
  };
  for (const auto& way : ways) {
    for (const Mode mode : {Mode::kExact, Mode::kSimple}) {
      Context context(a);
      context.backward({way().sum()}, {.mode = mode});
      EXPECT_TRUE(same(context.gradient(x), y));
      EXPECT_TRUE(same(context.gradient(y), x));
      EXPECT_FALSE(x.grad().defined());
    }
  }
}

TEST_F(Behaviour36_Gradients, AreThereForDeepChainsAndRings) {
  const at::Tensor x = leaf({2}), y = leaf({2});
  std::vector<int> path;
  for (int i = 0; i < 30; ++i) path.push_back(i % 4);
  Context context(a);
  context.backward({a.sync<call_on>("b", x, y, path).sum()});
  const at::Tensor lx = leaf({2}), ly = leaf({2});
  call_on_locally(lx, ly, 30).sum().backward();
  EXPECT_TRUE(same(context.gradient(x), lx.grad()));
  EXPECT_TRUE(same(context.gradient(y), ly.grad()));
}

TEST_F(Behaviour36_Gradients, OfSeveralRootsAreTheSum) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  const at::Tensor z = a.sync<product>("b", x, y);
  context.backward({z.sum(), (z * 2).sum(), x.sum(), z.sum()});
  EXPECT_TRUE(same(context.gradient(x), 4 * y + 1));
}

TEST_F(Behaviour36_Gradients, OfARootThatIsALeafOrWasReceived) {
  const at::Tensor x = leaf({}), y = leaf({});
  Context context(a);
  context.backward({x, a.sync<product>("b", x, y)});
  EXPECT_TRUE(same(context.gradient(x), y + 1));
}

TEST_F(Behaviour36_Gradients, DoNotNeedUnusedResults) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  const at::Tensor z = a.sync<product>("b", x, y);
  const at::Tensor unused = a.sync<product>("b", x, x);
  const at::Tensor deeper = a.sync<call_on>("c", unused, x, std::vector<int>{3, 0});
  const RRef<at::Tensor> never_fetched = remote<product>(a, "d", x, x);
  context.backward({z.sum()});
  EXPECT_TRUE(same(context.gradient(x), y));
}

// What upstream hangs at for ever ends at the timeout, and says why.
TEST_F(Behaviour36_Gradients, InSimpleModeAnUnusedResultEndsAtTheTimeout) {
  const at::Tensor x = leaf({3});
  Context context(a);
  const at::Tensor z = a.sync<product>("b", x, x);
  const at::Tensor unused = a.sync<product>("c", x, x);
  EXPECT_THAT([&] { context.backward({z.sum()}, {.mode = Mode::kSimple, .timeout = 100ms}); },
              fails_with(ErrorCode::kContextAborted, "simple mode"));
}

TEST_F(Behaviour36_Gradients, OfTensorsThatNeedThemAmongOthersThatDoNot) {
  const at::Tensor x = leaf({3}), still = at::ones({3}, at::kDouble) * 5;
  const at::Tensor whole = at::ones({3}, at::kLong);
  Context context(a);
  const at::Tensor z = a.sync<[](at::Tensor s, at::Tensor t, at::Tensor n, at::Tensor none) {
    return s * t * n + (none.defined() ? 1 : 0);
  }>("b", still, x, whole, at::Tensor());
  context.backward({z.sum()});
  EXPECT_TRUE(same(context.gradient(x), still));
  EXPECT_EQ(context.gradients().size(), 1u);
}

TEST_F(Behaviour36_Gradients, OnlyOnTheCalleesSide) {
  static const at::Tensor weight = leaf({3});
  const at::Tensor x = at::ones({3}, at::kDouble) * 4;
  Context context(a);
  context.backward({a.sync<[](at::Tensor t) { return t * weight; }>("b", x).sum()});
  EXPECT_TRUE(context.gradients().empty());
  EXPECT_TRUE(same(autograd::gradient(b, context.id(), weight), x));
}

TEST_F(Behaviour36_Gradients, OfPartsOfAMessageOnly) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  context.backward({a.sync<first_of>("b", std::vector<at::Tensor>{x, y, x}).sum()});
  EXPECT_TRUE(same(context.gradient(x), at::full({3}, 2.0, at::kDouble)));
  EXPECT_FALSE(context.gradient(y).defined());
}

TEST_F(Behaviour36_Gradients, AccumulateInTheContext) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  const at::Tensor loss = a.sync<product>("b", x, y).sum();
  for (int i = 1; i <= 1000; ++i) {
    context.backward({loss}, {.retain_graph = true});
    if (i < 3 || i == 1000) {
      EXPECT_TRUE(same(context.gradient(x), i * y));
    }
  }
}

TEST_F(Behaviour36_Gradients, OfManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([this, i] {
      Agent& driver = group[static_cast<size_t>(i % 3)];
      const at::Tensor x = leaf({3}, i + 1), y = leaf({3});
      for (int repeat = 0; repeat < 20 / test::kSlowness + 1; ++repeat) {
        Context context(driver);
        context.backward({driver.sync<call_on>("d", x, y, std::vector<int>{1, 0}).sum()});
        EXPECT_TRUE(same(context.gradient(x), 4 * y));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(all_forgotten());
}

TEST_F(Behaviour36_Gradients, OfSeveralTypesAndShapes) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{}, {1}, {0}, {2, 3}, {1, 2, 3, 4}}) {
      const at::Tensor x = at::ones(sizes, type).set_requires_grad(true);
      Context context(a);
      context.backward({a.sync<product>("b", x, x).sum()});
      EXPECT_EQ(context.gradient(x).scalar_type(), type);
      EXPECT_TRUE(same(context.gradient(x), 2 * x));
    }
  }
}

TEST_F(Behaviour36_Gradients, OfBroadcastsViewsAndChangesInPlace) {
  const at::Tensor row = leaf({3}), matrix = leaf({2, 3});
  Context context(a);
  const at::Tensor view = matrix.t();
  const at::Tensor z = a.sync<product>("b", view, row.reshape({3, 1}));
  at::Tensor sent = matrix * 1;
  const at::Tensor w = a.sync<product>("c", sent, row);
  sent.mul_(100);  // after it was sent
  context.backward({z.select(0, 1).sum() + w.sum()});
  const at::Tensor lrow = leaf({3}), lmatrix = leaf({2, 3});
  ((lmatrix.t() * lrow.reshape({3, 1})).select(0, 1).sum() + (lmatrix * lrow).sum()).backward();
  EXPECT_TRUE(same(context.gradient(row), lrow.grad()));
  EXPECT_TRUE(same(context.gradient(matrix), lmatrix.grad()));
}

TEST_F(Behaviour36_Gradients, MayBeSparse) {
  const at::Tensor table = leaf({5, 2});
  const at::Tensor rows = at::arange(0, 3, at::kLong);
  Context context(a);
  const at::Tensor found = a.sync<[](at::Tensor t, at::Tensor which) {
    return at::embedding(t, which, -1, false, /*sparse=*/true);
  }>("b", table, rows);
  context.backward({found.sum()});
  EXPECT_TRUE(context.gradient(table).is_sparse());
  const at::Tensor dense = context.gradient(table).to_dense();
  EXPECT_EQ(dense.sum().item<double>(), 6);
  EXPECT_EQ(dense.select(0, 4).sum().item<double>(), 0);
}

TEST_F(Behaviour36_Gradients, RunHooks) {
  at::Tensor x = leaf({3});
  x.register_hook([](const at::Tensor& gradient) { return gradient * 10; });
  Context context(a);
  at::Tensor z = a.sync<product>("b", x, leaf({3}).detach());
  int seen = 0;
  z.register_hook([&seen](const at::Tensor& gradient) {
    ++seen;
    return gradient * 2;
  });
  context.backward({z.sum()});
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(same(context.gradient(x), 20 * leaf({3})));
}

TEST_F(Behaviour36_Gradients, BelongToTheirLeafAlone) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  Context context(a);
  context.backward({(x + y).sum() + a.sync<identity>("b", x).sum()});
  context.gradient(x).mul_(10);  // as an optimizer may
  EXPECT_TRUE(same(context.gradient(x), at::full({3}, 20.0, at::kDouble)));
  EXPECT_TRUE(same(context.gradient(y), at::full({3}, 1.0, at::kDouble)));
}

// Of two threads that wait for the same worker one receives for both.
TEST_F(Behaviour36_Gradients, AreNotLostToAThreadInInferenceMode) {
  std::atomic<bool> stop{false};
  std::thread inferring([&] {
    const c10::InferenceMode mode;
    while (!stop) a.sync<product>("b", at::ones({3}), at::ones({3}));
  });
  const at::Tensor x = leaf({3}), y = leaf({3});
  for (int i = 0; i < 200 / test::kSlowness; ++i) {
    Context context(a);
    context.backward({(a.sync<product>("b", x, y) * y).sum()});
    EXPECT_TRUE(same(context.gradient(x), y * y));
  }
  stop = true;
  inferring.join();
}

TEST_F(Behaviour36_Gradients, OfDropoutOnAnotherWorker) {
  const at::Tensor x = leaf({100});
  Context context(a);
  const at::Tensor y = a.sync<dropped_out>("b", x);
  context.backward({y.sum()});
  EXPECT_TRUE(same(context.gradient(x), (y / x).detach()));
}

TEST_F(Behaviour36_Gradients, OfAReference) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  for (const char* owner : {"b", "a"}) {
    Context context(a);
    const auto z = remote<[](at::Tensor s, at::Tensor t) { return (s * t).sum(); }>(a, owner, x, y);
    z.backward(context);
    EXPECT_TRUE(same(context.gradient(x), y));
    const RRef<at::Tensor> no_scalar = remote<product>(a, owner, x, y);
    EXPECT_THAT([&] { no_scalar.backward(context); },
                fails_with(ErrorCode::kInvalidArgument, "scalar"));
    z.to_here();
    EXPECT_TRUE(same(context.gradient(x), y));  // still
  }
}

// --- 37: errors --------------------------------------------------------------------------------

using Behaviour37_Errors = Behaviour;

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

TEST_F(Behaviour37_Errors, ACallThatWasRefusedIsNot) {
  const at::Tensor x = leaf({3});
  Context context(a);
  EXPECT_THAT([&] { a.sync<throws>("b", x); }, fails_with(ErrorCode::kRemoteError));
  EXPECT_THAT([&] { a.sync<[](at::Tensor t) { return t; }>(Destination("b", 1ns), x); },
              fails_with(ErrorCode::kTimeout));
  context.backward({a.sync<product>("b", x, x).sum()});
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
