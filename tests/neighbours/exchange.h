// What the workers of all campaigns do: send each other tensors, and check what comes back.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include <ATen/core/Tensor.h>

#include "weft/agent.h"

namespace weft::neighbours {

at::Tensor negate(const at::Tensor& tensor);
int64_t echo(int64_t number);

struct Tally {
  std::atomic<uint64_t> right{0};
  std::atomic<uint64_t> wrong{0};     // another value than was computed
  std::atomic<uint64_t> failed{0};    // with an error that a lost or hostile neighbour explains
  std::atomic<uint64_t> strange{0};   // with another one
  std::atomic<uint64_t> too_late{0};  // long after its timeout
};

/// Joins a group of workers "w0", "w1", ... through a file.
std::unique_ptr<Agent> join(const std::string& file, int rank, int world_size);

/// One call with a tensor of up to `most` bytes, or a number; false if it failed. A value that is
/// wrong counts as such.
bool exchange(Agent& agent, const std::string& to, std::mt19937_64& random, size_t most,
              Tally& tally);

/// Whether nothing is lent or used in this process's arena, soon.
bool arena_is_empty();

/// "right 17, wrong 0, ..."
std::string text(const Tally& tally);

}  // namespace weft::neighbours
