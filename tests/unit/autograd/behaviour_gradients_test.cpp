// The gradients of a backward pass are those of a local run.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "autograd_scene.h"

namespace weft::behaviour_autograd {

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

// More gradients for the driver than a message takes tensors.
static std::mutex kept_mutex;
static std::vector<at::Tensor> kept;
static void keep(at::Tensor x) {
  const std::lock_guard lock(kept_mutex);
  kept.push_back(x);
}
static at::Tensor sum_of_kept() { return at::stack(std::exchange(kept, {})).sum(); }

TEST_F(Behaviour36_Gradients, OfVeryManyMessages) {
  const at::Tensor x = leaf({2});
  Context context(a);
  for (int i = 0; i < 5000; ++i) a.sync<keep>("b", x);
  context.backward({a.sync<sum_of_kept>("b")});
  EXPECT_TRUE(same(context.gradient(x), at::full({2}, 5000.0, at::kDouble)));
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

// Large enough that an accelerator is still at it when the next operation is asked for.
at::Tensor on_a_stream_of_its_own(at::Tensor x) {
  const at::Device device(at::kCUDA, 0);
  const c10::impl::VirtualGuardImpl impl(at::kCUDA);
  const c10::Stream stream = impl.getStreamFromGlobalPool(device);
  at::Tensor y;
  {
    const c10::StreamGuard guard(stream);
    const at::Tensor there = x.to(device);
    y = at::matmul(there, there) * 0.01 + there + at::tanh(there);
  }
  stream.synchronize();
  return (y * y).to(at::kCPU);
}
at::Tensor on_the_cpu(const at::Tensor& x) {
  const at::Tensor y = at::matmul(x, x) * 0.01 + x + at::tanh(x);
  return y * y;
}

TEST_F(Behaviour36_Gradients, ThroughAnAccelerator) {
  if (!at::hasCUDA()) GTEST_SKIP() << "there is none";
  const at::Tensor x = at::rand({500, 500}, at::kDouble).set_requires_grad(true);
  on_the_cpu(x).sum().backward();
  for (int i = 0; i < 20; ++i) {
    Context context(a);
    const at::Tensor z = a.sync<on_a_stream_of_its_own>("b", x);
    const at::Tensor w = on_a_stream_of_its_own(x);
    context.backward({z.sum() + w.sum()});
    EXPECT_TRUE(same(context.gradient(x), 2 * x.grad()));
  }
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

// The creation is still being sent when the first message of the pass leaves, which goes ahead of
// bulk.
TEST_F(Behaviour36_Gradients, OfAReferenceWhoseCreationCarriesMuch) {
  const at::Tensor x = leaf({4 << 20});
  a.sync<in_a_context>("b");  // connected: before, nothing overtakes
  Context context(a);
  const auto z = remote<[](at::Tensor t) { return t.sum(); }>(a, "b", x);
  z.backward(context);
  EXPECT_TRUE(same(context.gradient(x), at::ones_like(x)));
}

}  // namespace weft::behaviour_autograd
