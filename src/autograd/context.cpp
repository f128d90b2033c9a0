// SPDX-License-Identifier: BSD-3-Clause
#include <new>

#include <fmt/format.h>

#include "autograd/contexts.h"
#include "autograd/pass_leader.h"
#include "base/log.h"
#include "weft/autograd.h"

namespace weft::autograd {

ContextState* current_state() { return dynamic_cast<ContextState*>(rpc::Companion::current()); }

namespace {

// The ambient of a thread on which a context is current; keeps the ambient of the call it serves.
class ContextAmbient final : public detail::Ambient {
 public:
  explicit ContextAmbient(detail::Ref<ContextState> state)
      : state_(std::move(state)),
        within_(detail::Ref<detail::Ambient>::share(detail::Ambient::current())) {}

  detail::Ambient* call() override { return within_ ? within_->call() : nullptr; }
  detail::RefCounted* companion() override { return state_.get(); }

 private:
  const detail::Ref<ContextState> state_;
  const detail::Ref<detail::Ambient> within_;
};

rpc::AgentCore& core(Agent& agent) { return *detail::AgentAccess::core(agent); }

}  // namespace

class Context::Current {
 public:
  Current(std::shared_ptr<rpc::AgentCore> the_agent, const detail::Ref<ContextState>& state)
      : agent(std::move(the_agent)), scope(detail::make_ref<ContextAmbient>(state)) {}

  const std::shared_ptr<rpc::AgentCore> agent;
  const detail::Ambient::Scope scope;
};

Context::Context() : Context(current_agent()) {}

Context::Context(Agent& agent) {
  if (const ContextState* current = current_state()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the autograd context {} is current on this thread already; contexts "
                            "do not nest",
                            current->id()));
  }
  const auto& shared = detail::AgentAccess::core(agent);
  state_ = Contexts::of(*shared).create();
  current_ = std::make_unique<Current>(shared, state_);
}

Context::~Context() {
  const auto agent = current_->agent;
  current_.reset();
  try {
    Contexts::of(*agent).release(*state_);
  } catch (const std::bad_alloc&) {
    base::log(LogLevel::kError, "autograd", "no memory to tell others of the end of context {}",
              state_->id());  // they ask by themselves
  }
}

int64_t Context::id() const { return state_->id(); }

void Context::backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options) {
  PassLeader(*current_->agent, *state_, options).run_from(roots);
}

void Context::backward_from(const RRef<at::Tensor>& root, const BackwardOptions& options) {
  PassLeader(*current_->agent, *state_, options).run_from(root);
}

at::Tensor Context::gradient(const at::Tensor& tensor) const {
  return state_->gradients().find(tensor);
}
Gradients Context::gradients() const { return state_->gradients().all(); }

at::Tensor gradient(Agent& agent, int64_t context_id, const at::Tensor& tensor) {
  return Contexts::of(core(agent)).get(context_id)->gradients().find(tensor);
}
Gradients gradients(Agent& agent, int64_t context_id) {
  return Contexts::of(core(agent)).get(context_id)->gradients().all();
}
at::Tensor gradient(int64_t context_id, const at::Tensor& tensor) {
  return gradient(current_agent(), context_id, tensor);
}
Gradients gradients(int64_t context_id) { return gradients(current_agent(), context_id); }

std::optional<int64_t> current_context_id() {
  const ContextState* current = current_state();
  return current ? std::optional(current->id()) : std::nullopt;
}

Census census(Agent& agent) { return Contexts::of(core(agent)).census(); }
Census census() { return census(current_agent()); }

}  // namespace weft::autograd
