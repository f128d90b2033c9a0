// SPDX-License-Identifier: BSD-3-Clause
#include "exchange.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/neg.h>
#include <fmt/format.h>

#include "arena/arena.h"
#include "weft/error.h"

namespace weft::neighbours {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kTimeout = 5s;
constexpr auto kMuchLater = 5s;

bool is_explained(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
    case ErrorCode::kUnavailable:
    case ErrorCode::kPeerLost:
    case ErrorCode::kOutcomeUnknown:
    case ErrorCode::kShuttingDown:
    case ErrorCode::kCancelled:
    case ErrorCode::kBadMessage:
    case ErrorCode::kRemoteError:
    case ErrorCode::kLimitExceeded:
    case ErrorCode::kUnknownFunction:
    case ErrorCode::kSignatureMismatch:
    case ErrorCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

bool call(Agent& agent, const std::string& to, std::mt19937_64& random, size_t most) {
  const Destination destination = Destination(to, kTimeout);
  if (random() % 4 == 0) {
    const auto number = static_cast<int64_t>(random());
    return agent.sync<echo>(destination, number) == number;
  }
  // As many small ones as large ones.
  const size_t doublings = static_cast<size_t>(std::max(1.0, std::log2(most / 4096.0)));
  const size_t bytes = std::min(most, size_t{4096} << (random() % (doublings + 1)));
  const auto elements = static_cast<int64_t>(bytes / sizeof(float));
  const at::Tensor tensor = at::arange(elements, at::kFloat) + static_cast<double>(random() % 1000);
  return at::equal(agent.sync<negate>(destination, tensor), at::neg(tensor));
}

}  // namespace

at::Tensor negate(const at::Tensor& tensor) { return at::neg(tensor); }
int64_t echo(int64_t number) { return number; }

std::unique_ptr<Agent> join(const std::string& file, int rank, int world_size) {
  Options options;
  options.rank = rank;
  options.world_size = world_size;
  options.init_method = "file://" + file;
  options.init_timeout = 60s;
  return Agent::join("w" + std::to_string(rank), options);
}

bool exchange(Agent& agent, const std::string& to, std::mt19937_64& random, size_t most,
              Tally& tally) {
  const auto began = Clock::now();
  bool succeeded = false;
  try {
    ++(call(agent, to, random, most) ? tally.right : tally.wrong);
    succeeded = true;
  } catch (const Error& error) {
    if (is_explained(error.code())) {
      ++tally.failed;
    } else {
      ++tally.strange;
      fmt::print("strange: {}\n", error.what());
    }
  } catch (const std::exception& error) {
    ++tally.strange;
    fmt::print("no error of Weft's: {}\n", error.what());
  }
  if (Clock::now() - began > kTimeout + kMuchLater) ++tally.too_late;
  return succeeded;
}

bool arena_is_empty() {
  arena::Arena* arena = arena::Arena::existing();
  if (!arena) return true;
  for (int i = 0; i < 200; ++i) {
    arena->tidy();
    const arena::Arena::Usage usage = arena->usage();
    if (usage.loans == 0 && usage.used_bytes == 0) return true;
    std::this_thread::sleep_for(50ms);
  }
  const arena::Arena::Usage usage = arena->usage();
  fmt::print("the arena has {} loans to {} borrowers and {} bytes in use\n", usage.loans,
             usage.borrowers, usage.used_bytes);
  return false;
}

std::string text(const Tally& tally) {
  return fmt::format("right {}, wrong {}, failed {}, strange {}, too late {}", tally.right.load(),
                     tally.wrong.load(), tally.failed.load(), tally.strange.load(),
                     tally.too_late.load());
}

}  // namespace weft::neighbours
