// What the behaviours of distributed optimizers are shown with: a group of workers with parameters
// each, and a loss over all of them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/optim.h"

namespace weft::behaviour_optim {

using autograd::Context;
using testing::AllOf;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;

inline auto fails_with(ErrorCode code, const std::string& text = "") {
  return Throws<Error>(
      AllOf(Property(&Error::code, code), Property(&Error::message, HasSubstr(text))));
}

/// What one worker has: a matrix, a row, and one that no loss uses.
struct Parameters {
  at::Tensor matrix, row, unused;
  std::vector<at::Tensor> all() const { return {matrix, row, unused}; }
};

inline Parameters make_parameters(int worker) {
  const auto values = [worker](at::IntArrayRef sizes, double shift) {
    const at::Tensor numbers = at::arange(c10::multiply_integers(sizes), at::kFloat);
    return (numbers * 0.37 + shift + worker).sin().reshape(sizes).set_requires_grad(true);
  };
  return {values({3, 4}, 0.1), values({4}, 0.5), values({2}, 0.9)};
}

/// By the name of the worker that has them.
inline std::map<std::string, Parameters>& everyones_parameters() {
  static std::map<std::string, Parameters> all;
  return all;
}

inline at::Tensor term(const Parameters& p, int64_t step) {
  const at::Tensor input = at::arange(12, at::kFloat).reshape({3, 4}) * (0.1 + 0.01 * step);
  return ((p.matrix * input).cos() * p.row).pow(2).sum() + (p.row * p.row).sum();
}
/// On the worker that has the parameters.
inline at::Tensor own_term(int64_t step) {
  return term(everyones_parameters().at(current_agent().info().name), step);
}
inline at::Tensor own_matrix() {
  return everyones_parameters().at(current_agent().info().name).matrix;
}
inline at::Tensor own_row() { return everyones_parameters().at(current_agent().info().name).row; }
inline at::Tensor own_unused() {
  return everyones_parameters().at(current_agent().info().name).unused;
}
/// Gives the matrix a sparse gradient.
inline at::Tensor own_sparse_term() {
  return at::embedding(own_matrix(), at::arange(2), -1, false, true);
}

class Behaviour : public testing::Test {
 protected:
  Behaviour() {
    for (int i = 0; i < 3; ++i) {
      everyones_parameters()[a_name(i)] = make_parameters(i);
      local.push_back(make_parameters(i));
    }
  }
  static std::string a_name(int i) { return std::string(1, static_cast<char>('a' + i)); }

  /// All parameters of all workers, in the order of `local`.
  std::vector<RRef<at::Tensor>> references() {
    std::vector<RRef<at::Tensor>> all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(remote<own_matrix>(group[0], i));
      all.push_back(remote<own_row>(group[0], i));
      all.push_back(remote<own_unused>(group[0], i));
    }
    return all;
  }
  std::vector<at::Tensor> local_tensors() {
    std::vector<at::Tensor> all;
    for (const Parameters& each : local) {
      for (const at::Tensor& tensor : each.all()) all.push_back(tensor);
    }
    return all;
  }
  /// The forward pass over all workers, and the backward pass.
  void pass(Context& context, int64_t step) {
    at::Tensor loss = group[0].sync<own_term>(0, step);
    for (int i = 1; i < 3; ++i) loss = loss + group[0].sync<own_term>(i, step);
    context.backward({loss});
  }
  void pass_locally(int64_t step) {
    at::Tensor loss = term(local[0], step);
    for (int i = 1; i < 3; ++i) loss = loss + term(local[static_cast<size_t>(i)], step);
    loss.backward();
  }
  template <typename Opt>
  void step(optim::DistributedOptimizer<Opt>& optimizer, int64_t number) {
    Context context(group[0]);
    pass(context, number);
    optimizer.step(context);
  }
  void step_locally(torch::optim::Optimizer& optimizer, int64_t number) {
    optimizer.zero_grad();
    pass_locally(number);
    optimizer.step();
  }
  /// Whether every worker has, bit for bit, what is here.
  void expect_equal() {
    for (int i = 0; i < 3; ++i) {
      const auto theirs = everyones_parameters().at(a_name(i)).all();
      const auto ours = local[static_cast<size_t>(i)].all();
      for (size_t j = 0; j < ours.size(); ++j) {
        EXPECT_TRUE(at::equal(theirs[j], ours[j])) << "worker " << i << ", parameter " << j;
      }
    }
  }

  test::LoopbackGroup group{{"a", "b", "c"}};
  std::vector<Parameters> local;
};

}  // namespace weft::behaviour_optim
