// Where a call goes, and how it is made.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weft/call_options.h"
#include "weft/worker_info.h"

namespace weft {

/// A worker by name, rank or WorkerInfo (oneself included), optionally with a timeout or other
/// options for this call: `rpc_sync<f>("worker1", x)`, `rpc_sync<f>({"worker1", 50ms}, x)`.
class Destination {
 public:
  Destination(std::string_view name, std::optional<Timeout> timeout = std::nullopt)
      : Destination(name, CallOptions{timeout}) {}
  Destination(const char* name, std::optional<Timeout> timeout = std::nullopt)
      : Destination(std::string_view(name), timeout) {}
  Destination(std::string name, std::optional<Timeout> timeout = std::nullopt)
      : name_(std::move(name)), options_{timeout} {}
  Destination(int rank, std::optional<Timeout> timeout = std::nullopt)
      : Destination(rank, CallOptions{timeout}) {}
  Destination(const WorkerInfo& info, std::optional<Timeout> timeout = std::nullopt)
      : Destination(info, CallOptions{timeout}) {}

  Destination(std::string_view name, const CallOptions& options) : name_(name), options_(options) {}
  Destination(int rank, const CallOptions& options) : rank_(rank), options_(options) {}
  Destination(const WorkerInfo& info, const CallOptions& options)
      : name_(info.name), rank_(info.id), options_(options) {}

  /// Empty if the worker was given by rank alone.
  const std::string& name() const { return name_; }
  /// Nothing if the worker was given by name alone.
  std::optional<int> rank() const { return rank_; }
  const CallOptions& options() const { return options_; }

 private:
  std::string name_;
  std::optional<int> rank_;
  CallOptions options_;
};

}  // namespace weft
