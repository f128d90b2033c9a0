// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/local_pass.h"

#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include "weft/error.h"

namespace weft::autograd {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

Edges edges_of(const std::vector<at::Tensor>& tensors) {
  Edges edges;
  for (const at::Tensor& tensor : tensors) edges.push_back(edge_of(tensor));
  return edges;
}

}  // namespace

// Begins a pass, or goes on with it.
void LocalPass::enter(uint64_t pass) {
  if (pass == pass_ && !over_ && !running_) return;
  if (pass <= pass_ || running_) {
    refuse(fmt::format("pass {} of context {} cannot be prepared: pass {} {}", pass, context_,
                       pass_, running_ ? "is running" : "was the last"));
  }
  pass_ = pass;
  over_ = false;
  sweep_.emplace(context_);
  roots_.clear();
  awaited_.clear();
  fresh_ = {};
}

Reached LocalPass::reach(const Edges& edges) {
  Reached reached;
  for (const Receipt* receipt : sweep_->reach(edges)) {
    reached[receipt->from()].push_back(receipt->message());
  }
  return reached;
}

Reached LocalPass::reached_by(uint64_t pass, const std::vector<uint64_t>& messages) {
  enter(pass);
  Reached all;
  for (const uint64_t message : messages) {
    const auto sent = tape_.find(message);
    if (!sent) refuse(fmt::format("no message {} was sent in context {}", message, context_));
    if (!awaited_.insert(message).second) continue;
    for (auto& [from, more] : reach(sent->edges)) {
      all[from].insert(all[from].end(), more.begin(), more.end());
    }
  }
  return all;
}

Reached LocalPass::reached_by_roots(uint64_t pass, const std::vector<at::Tensor>& roots) {
  enter(pass);
  roots_.insert(roots_.end(), roots.begin(), roots.end());
  return reach(edges_of(roots));
}

void LocalPass::run(const RunOrder& order) {
  if (order.everything) {
    reached_by(order.pass.number, tape_.messages());
  } else {
    enter(order.pass.number);
  }
  retain_graph_ = order.retain_graph;
  running_ = true;
  if (!roots_.empty()) {
    Tensors ones;
    for (const at::Tensor& root : roots_) ones.push_back(at::ones_like(root));
    sweep_->deliver(edges_of(roots_), std::move(ones));
  }
  if (early_pass_ > pass_) return;
  auto early = std::exchange(early_, {});
  for (auto& [message, arrived] : early) on_gradients(arrived.first, std::move(arrived.second));
}

void LocalPass::keep_early(int from, ReturnedGradients returned) {
  if (returned.pass.number > early_pass_) {
    dropped_ += early_.size();
    early_.clear();
    early_pass_ = returned.pass.number;
  }
  const uint64_t message = returned.message;
  const bool is_first = returned.pass.number == early_pass_ &&
                        early_.try_emplace(message, from, std::move(returned)).second;
  if (!is_first) ++dropped_;
}

void LocalPass::on_gradients(int from, ReturnedGradients returned) {
  const auto sent = tape_.find(returned.message);
  if (!sent || sent->to != from) {
    refuse(fmt::format("gradients for message {} of context {}, which was not sent to rank {}",
                       returned.message, context_, from));
  }
  const uint64_t pass = returned.pass.number;
  if (pass > pass_ || (pass == pass_ && !running_ && !over_)) {
    keep_early(from, std::move(returned));
  } else if (pass < pass_ || awaited_.erase(returned.message) == 0) {
    ++dropped_;  // of an earlier pass, or a second time
  } else {
    sweep_->deliver(sent->edges, std::move(returned.gradients));
  }
}

std::optional<LocalPass::Outgoing> LocalPass::step() {
  Sweep::Outcome outcome = sweep_->step(retain_graph_);
  if (outcome.receipt) {
    return Outgoing{outcome.receipt->from(),
                    {{context_, pass_}, outcome.receipt->message(), std::move(outcome.gradients)}};
  }
  if (outcome.gradient.defined()) {
    fresh_.add(outcome.leaf, outcome.gradient);
    last_leaf_.emplace(std::move(outcome.leaf), std::move(outcome.gradient));
  }
  return std::nullopt;
}

std::optional<Leaves> LocalPass::take_finished() {
  if (!running_ || !awaited_.empty() || !sweep_->finished()) return std::nullopt;
  sweep_->finish_device_work();
  sweep_.reset();
  roots_.clear();
  running_ = false;
  over_ = true;
  return std::exchange(fresh_, {});
}

}  // namespace weft::autograd
