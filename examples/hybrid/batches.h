// What the trainers learn from: bags of table rows, each of a random class.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <ATen/Functions.h>

constexpr int64_t kRows = 100, kClasses = 8;

struct Batch {
  at::Tensor indices;  // of all bags, one after the other
  at::Tensor offsets;  // where each bag begins
  at::Tensor target;
};

/// The tutorial's random batches; a seed always gives the same ones.
class Batches {
 public:
  explicit Batches(uint64_t seed) : random_(seed) {}

  Batch next() {
    std::vector<int64_t> indices(static_cast<size_t>(draw(20, 50))), offsets, target;
    for (int64_t& index : indices) index = draw(0, kRows - 1);
    for (int64_t at = 0; at < static_cast<int64_t>(indices.size()); at += draw(1, 10)) {
      offsets.push_back(at);
      target.push_back(draw(0, kClasses - 1));
    }
    return {at::tensor(indices), at::tensor(offsets), at::tensor(target)};
  }

 private:
  // Not a distribution: those differ between standard libraries.
  int64_t draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }

  std::mt19937_64 random_;
};
