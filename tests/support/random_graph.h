// Random computations spread over several workers, and the same ones run locally.
//
// Everything follows from a seed: which operations there are, who computes them and how their
// inputs get there, and the leaves of every worker.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "weft/agent.h"
#include "weft/rref.h"

namespace weft::random_graphs {

constexpr size_t kWorkers = 5;
constexpr uint64_t kDrivers = 4;  // workers below this rank make contexts
constexpr size_t kLeavesEach = 3;

enum class Way : uint8_t { kHere, kSync, kAsync, kRemote };
enum class References : uint8_t { kPassOn, kFetch };  // those among the inputs

struct Operation {
  uint32_t rule = 0, number = 0;
  int32_t worker = 0;
  std::vector<uint32_t> inputs = {};  // earlier results; one may be there several times
  Way way = Way::kSync;
  References references = References::kPassOn;
};

/// Operations [first, last) that one worker, the foreman, computes or has others compute.
struct Section {
  int32_t foreman = 0;
  uint32_t parent = 0, first = 0, last = 0;
  Way way = Way::kSync;
};

struct Program {
  uint64_t id = 0;  // its seed
  std::vector<Operation> operations = {};
  std::vector<Section> sections = {};  // an outer one before those in it; the first is the driver's
  std::vector<uint32_t> roots = {};
  bool separate_roots = false;
};

/// For a driver of rank `seed % kDrivers`.
Program make_program(uint64_t seed);

// By rank and number.
using Leaves = std::vector<std::vector<at::Tensor>>;
Leaves make_leaves(uint64_t seed);
/// The leaves that the workers of one process share. They stay: late results may use them.
Leaves leaves_of(uint64_t program);

/// Gives `leaves` their `.grad`; returns the loss.
at::Tensor run_locally(const Program& program, const Leaves& leaves);

using Value = std::variant<at::Tensor, RRef<at::Tensor>>;
using Values = std::map<uint32_t, Value>;  // by operation
at::Tensor tensor_of(const Value& value);

/// Has the workers of `agent`'s group compute it, in all the ways there are: all results, some of
/// them references.
Values run_spread(Agent& agent, const Program& program);
/// Waits for what nobody asked for. Some of it is brought here in vain, some without being
/// recorded.
void settle(const Program& program, const Values& results);

/// Scalars to begin at: one for each root that needs gradients, or their sum.
std::vector<at::Tensor> losses_of(const Program& program,
                                  const std::function<at::Tensor(uint32_t)>& result);
at::Tensor sum_of(const std::vector<at::Tensor>& terms);

/// What differs; empty if nothing does. No gradient is as good as zeros.
std::string difference(const at::Tensor& expected, const at::Tensor& got);

}  // namespace weft::random_graphs
