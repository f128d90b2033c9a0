// Leads one backward pass: carries out what PassProgress says, on the thread that waits for the
// pass.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/contexts.h"
#include "autograd/pass_progress.h"
#include "weft/autograd.h"

namespace weft::autograd {

class PassLeader {
 public:
  PassLeader(rpc::AgentCore& agent, ContextState& state, const BackwardOptions& options);

  /// Return when every worker has its gradients. Throw kInvalidArgument for wrong roots, then
  /// nothing has changed, and kContextAborted, then the context is over everywhere.
  void run_from(const std::vector<at::Tensor>& roots);
  void run_from(const RRef<at::Tensor>& root);

 private:
  PassAnswer ask_owner(const RRef<at::Tensor>& root);
  PassAnswer ask_here(const std::vector<at::Tensor>& roots);
  at::Tensor own_value(const RRef<at::Tensor>& root) const;
  void run(int root_rank, const PassAnswer& roots);
  void carry_out(const PassProgress::Orders& orders);
  void ask(int rank, const std::vector<uint64_t>& messages);
  void order(const std::vector<int>& ranks);
  void await_answers();
  void await_finished();
  void take_gradients(int rank, RunReport report);
  template <typename T>
  T await(const Future<T>& future);
  void look_for_failure();
  Timeout time_left() const;
  [[noreturn]] void run_out_of_time() const;
  std::string name(int rank) const;

  rpc::AgentCore& agent_;
  ContextState& state_;
  const BackwardOptions options_;
  const int self_;
  const std::unique_lock<std::mutex> only_one_;
  const PassId pass_;
  const base::Time deadline_;
  std::optional<PassProgress> progress_;
  std::deque<std::pair<int, Future<PassAnswer>>> questions_;
  std::vector<std::pair<int, Future<RunReport>>> running_;
};

}  // namespace weft::autograd
