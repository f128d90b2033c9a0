// What replicas of a module are shown with: members on a thread each, and what one process gets.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/loopback_group.h"
#include "support/sanitizers.h"
#include "weft/nn.h"

namespace weft::data_parallel {

using namespace std::chrono_literals;
using autograd::Context;
using nn::DataParallelOptions;
using nn::DistributedDataParallel;
using testing::AllOf;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using Tensors = std::vector<at::Tensor>;

struct Member {
  int64_t rank;
  Agent& agent;
  ProcessGroup group;
};
using Part = std::function<void(const Member&)>;

/// How gradients come about: in `.grad`, in a context, there with a DistributedOptimizer.
enum class Way { kPlain, kContext, kDistributed };

/// Numbers that differ by member and step.
inline at::Tensor numbers(at::IntArrayRef sizes, int64_t rank, int64_t step) {
  const at::Tensor places = at::arange(c10::multiply_integers(sizes), at::kFloat);
  return (places * 0.37 + static_cast<double>(rank) * 1.3 + static_cast<double>(step) * 0.7)
      .sin()
      .reshape(sizes);
}
inline at::Tensor input(int64_t rank, int64_t step) { return numbers({4, 6}, rank, step); }
inline at::Tensor target(int64_t rank, int64_t step) { return numbers({4, 3}, rank + 7, step); }
inline at::Tensor distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).pow(2).mean();
}

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 5))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(5, 3))};
};
/// Declares its layers in the order in which their gradients come, which is not the usual one.
struct UpsideDownImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  torch::nn::Linear second{register_module("second", torch::nn::Linear(5, 3))};
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 5))};
};
inline auto net_loss = [](auto& net, int64_t rank, int64_t step) {
  return distance(net.forward(input(rank, step)), target(rank, step));
};

/// Gives `to` what `from`, a module of the same class, has.
inline void copy_state(torch::nn::Module& to, const torch::nn::Module& from) {
  const at::NoGradGuard off;
  const Tensors source = from.parameters(), buffers = from.buffers();
  Tensors parameters = to.parameters(), to_buffers = to.buffers();
  for (size_t i = 0; i < source.size(); ++i) parameters[i].copy_(source[i]);
  for (size_t i = 0; i < buffers.size(); ++i) to_buffers[i].copy_(buffers[i]);
}
template <typename M>
std::shared_ptr<M> copy_of(const M& module) {
  auto copy = std::make_shared<M>();
  copy_state(*copy, module);
  return copy;
}
inline Tensors values(const torch::nn::Module& module) {
  Tensors all;
  for (const at::Tensor& each : module.parameters()) all.push_back(each.detach().clone());
  return all;
}
inline Tensors grads(const torch::nn::Module& module) {
  Tensors all;
  for (const at::Tensor& each : module.parameters()) {
    all.push_back(each.grad().defined() ? each.grad().clone() : at::Tensor());
  }
  return all;
}
inline Tensors grads(const torch::nn::Module& module, const Context& context) {
  Tensors all;
  for (const at::Tensor& each : module.parameters()) {
    const at::Tensor gradient = context.gradient(each);
    all.push_back(gradient.defined() ? gradient.clone() : gradient);
  }
  return all;
}
inline void forget_grads(torch::nn::Module& module) {
  for (at::Tensor& each : module.parameters()) each.mutable_grad().reset();
}

inline at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor.to_dense() : tensor;
}
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return at::allclose(dense(a), dense(b), 1e-4, 1e-6);
}
inline void expect_same(const Tensors& a, const Tensors& b, const std::string& where = "") {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same(a[i], b[i])) << where << " " << i << "\n" << a[i] << "\n" << b[i];
  }
}
/// By member: bit for bit alike.
inline void expect_alike(const std::vector<Tensors>& all) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    ASSERT_EQ(all[rank].size(), all[0].size());
    for (size_t i = 0; i < all[0].size(); ++i) {
      ASSERT_EQ(all[rank][i].defined(), all[0][i].defined()) << rank << " " << i;
      if (!all[0][i].defined()) continue;
      EXPECT_TRUE(at::equal(dense(all[rank][i]), dense(all[0][i]))) << rank << " " << i;
    }
  }
}

/// What one process gets: gradients of the mean of all members' losses.
template <typename M, typename Loss>
Tensors mean_grads(const M& module, int64_t members, const Loss& loss) {
  auto alone = copy_of(module);
  for (int64_t rank = 0; rank < members; ++rank) {
    (loss(*alone, rank) / static_cast<double>(members)).backward();
  }
  return grads(*alone);
}

/// Of a member that is to fail with an error of Weft's.
inline std::optional<Error> error_of(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "no weft::Error: " << other.what();
  }
  return std::nullopt;
}
inline std::string text_of(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class Scene : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kGroupTimeout{20 * test::kSlowness};
  /// What is meant by "soon", well before any timeout.
  static constexpr std::chrono::seconds kSoon{10 * test::kSlowness};

  /// Runs `part` on the first `members` workers at once; what each threw.
  std::vector<std::exception_ptr> outcomes(size_t members, const Part& part) {
    std::vector<std::string> names;
    for (size_t i = 0; i < members; ++i) names.push_back(workers[i].info().name);
    std::vector<std::future<void>> ends;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members; ++i) {
      std::packaged_task<void()> task([this, i, &names, &part] {
        part({static_cast<int64_t>(i), workers[i],
              new_group(workers[i], names, {kGroupTimeout, kGroupTimeout})});
      });
      ends.push_back(task.get_future());
      threads.emplace_back(std::move(task));
    }
    std::vector<std::exception_ptr> all;
    const auto limit = std::chrono::steady_clock::now() + 3 * kGroupTimeout;
    for (auto& end : ends) {
      if (end.wait_until(limit) != std::future_status::ready) give_up(ends);
    }
    for (auto& end : ends) all.push_back(outcome(end));
    for (std::thread& thread : threads) thread.join();
    return all;
  }
  void on_members(size_t members, const Part& part) {
    const auto all = outcomes(members, part);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i]) ADD_FAILURE() << "member " << i << ": " << text_of(all[i]);
    }
  }

  test::LoopbackGroup workers{{"t0", "t1", "t2", "t3", "ps"}};

 private:
  // A thread cannot be ended, so this is the end of the program.
  [[noreturn]] static void give_up(std::vector<std::future<void>>& ends) {
    for (size_t i = 0; i < ends.size(); ++i) {
      const bool is_over = ends[i].wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      std::fprintf(stderr, "member %zu: %s\n", i,
                   is_over ? text_of(outcome(ends[i])).c_str() : "does not come to an end");
    }
    std::abort();
  }
  static std::exception_ptr outcome(std::future<void>& end) {
    try {
      end.get();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
};

}  // namespace weft::data_parallel
