// Where a call goes, and how long its caller waits.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weft/worker_info.h"

namespace weft {

/// How long a call may take. Zero: as long as the peer lives.
using Timeout = std::chrono::nanoseconds;

/// A worker by name, rank or WorkerInfo (oneself included), optionally with a timeout for this
/// call: `rpc_sync<f>("worker1", x)`, `rpc_sync<f>({"worker1", 50ms}, x)`.
class Destination {
 public:
  Destination(std::string_view name, std::optional<Timeout> timeout = std::nullopt)
      : name_(name), timeout_(timeout) {}
  Destination(const char* name, std::optional<Timeout> timeout = std::nullopt)
      : name_(name), timeout_(timeout) {}
  Destination(std::string name, std::optional<Timeout> timeout = std::nullopt)
      : name_(std::move(name)), timeout_(timeout) {}
  Destination(int rank, std::optional<Timeout> timeout = std::nullopt)
      : rank_(rank), timeout_(timeout) {}
  Destination(const WorkerInfo& info, std::optional<Timeout> timeout = std::nullopt)
      : name_(info.name), rank_(info.id), timeout_(timeout) {}

  /// Empty if the worker was given by rank alone.
  const std::string& name() const { return name_; }
  /// Nothing if the worker was given by name alone.
  std::optional<int> rank() const { return rank_; }
  std::optional<Timeout> timeout() const { return timeout_; }

 private:
  std::string name_;
  std::optional<int> rank_;
  std::optional<Timeout> timeout_;
};

}  // namespace weft
