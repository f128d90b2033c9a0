// Two processes that talk to each other: one serves, the other calls and measures.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "support/child.h"
#include "support/samples.h"

namespace bench {

/// An anchor: the server's role announces its address, the caller's role gets it as its argument.
class AnchorPair {
 public:
  AnchorPair(const std::string& server_role, const std::string& caller_role,
             std::optional<int> cpu = {});

  Child& callee() { return server_; }
  Child& caller() { return caller_; }

 private:
  // The caller goes first: its socket closes and ends the server.
  Child server_;
  Child caller_;
};

/// Two workers that meet at a rendezvous file; ready when the constructor returns.
class WorkerPair {
 public:
  /// How Weft's two workers reach each other. Memory: through shared memory, and their tensors are
  /// made there.
  enum class Way : uint8_t { kTcp, kNearest, kMemory };
  /// Runs the roles `weft_callee` and `weft_caller`. `spin` is in microseconds, or "default".
  static WorkerPair weft(const std::string& spin, Way way, std::optional<int> cpu = {});

  /// Runs torch_rpc_peer.py, found in `scripts`, whose text says what a channel is.
  static WorkerPair torch(const std::string& scripts, const std::string& channel);

  /// Runs torch_ddp.py, found in `scripts`.
  static WorkerPair torch_ddp(const std::string& scripts);

  WorkerPair(WorkerPair&&) = default;
  ~WorkerPair();

  Child& callee() { return *callee_; }
  Child& caller() { return *caller_; }

  /// Stops both, and lets them go on.
  void freeze();
  void thaw();

 private:
  WorkerPair() = default;
  // Runs `script RANK RENDEZVOUS arguments...`.
  static WorkerPair python(const std::string& script, const std::vector<std::string>& arguments);
  void wait_until_ready();

  std::unique_ptr<weft::base::TemporaryDirectory> directory_ =
      std::make_unique<weft::base::TemporaryDirectory>("weft-bench");
  std::unique_ptr<Child> callee_;
  std::unique_ptr<Child> caller_;
};

/// Asks the pair's caller to do `what` `count` times; nothing to measure without a pair.
Measurement asking(std::optional<WorkerPair>& workers, const std::string& what, size_t count);

}  // namespace bench
