// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/gradient_call.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "autograd/context_state.h"
#include "autograd/reserved_functions.h"
#include "weft/detail/outgoing_call.h"

namespace weft::autograd {

namespace {

class GradientCall final : public detail::TypedCall<void> {
 public:
  GradientCall(std::shared_ptr<rpc::Runtime> runtime, detail::Ref<ContextState> context, int to,
               uint64_t pass)
      : runtime_(std::move(runtime)), context_(std::move(context)), to_(to), pass_(pass) {}

  /// Nobody else is receiving from there.
  void let_loop_receive() { need_receiver(); }

  void settle_with(Decoder& result, detail::ContinuationSink* sink) override {
    TypedCall<void>::settle_with(result, sink);
    std::exchange(context_, {})->on_delivered(to_, pass_);
  }
  void on_failed(const Error& error) noexcept override {
    auto* later = new detail::Continuation;
    later->task = [context = std::exchange(context_, {}), error] {
      if (context) context->fail(fmt::format("gradients were lost: {}", error.message()));
    };
    runtime_->io.post(later);
  }

 private:
  const std::shared_ptr<rpc::Runtime> runtime_;
  detail::Ref<ContextState> context_;
  const int to_;
  const uint64_t pass_;
};

}  // namespace

void send_gradients(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                    const ReturnedGradients& returned) {
  using Function = detail::RemoteFunction<sys_autograd_gradients>;
  Encoder arguments;
  Function::encode(arguments, returned);
  const bool leads = context->creator() == agent.runtime().self().info.id;
  auto call = detail::make_ref<GradientCall>(agent.runtime().shared_from_this(), std::move(context),
                                             to, returned.pass.number);
  // Bounded by the pass: when that is given up, so are all who wait for these.
  agent.start_call(*call, Function::entry(), Destination(to, Timeout(0)), true, arguments);
  // The creator waits for that worker itself.
  if (!leads) call->let_loop_receive();
}

}  // namespace weft::autograd
