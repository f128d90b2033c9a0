// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/pass_calls.h"

#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "autograd/context_state.h"
#include "autograd/reserved_functions.h"
#include "autograd/without_memory.h"
#include "weft/detail/outgoing_call.h"

namespace weft::autograd {

namespace {

/// Knows the context until the call has its outcome: the context knows the future of the call, and
/// neither must keep the other alive after that. Tells the context of a failure later: the thread
/// that notices the failure must not be held up.
class PassCall {
 public:
  PassCall(std::shared_ptr<rpc::Runtime> runtime, detail::Ref<ContextState> context)
      : runtime_(std::move(runtime)), context_(std::move(context)) {}

 protected:
  /// `news` is a function of the context, and throws nothing.
  template <typename F>
  void tell(const F& news) noexcept {
    const detail::Ref<ContextState> context = take_context();
    if (!context) return;
    try {
      runtime_->io.post_task([news, context] { news(*context); });
    } catch (const std::bad_alloc&) {
      news(*context);  // better a thread that is held up than a pass that does not end
    }
  }
  detail::Ref<ContextState> take_context() { return std::exchange(context_, {}); }

 private:
  const std::shared_ptr<rpc::Runtime> runtime_;
  detail::Ref<ContextState> context_;
};

class GradientCall final : public detail::TypedCall<void>, private PassCall {
 public:
  GradientCall(std::shared_ptr<rpc::Runtime> runtime, detail::Ref<ContextState> context, int to,
               uint64_t pass)
      : PassCall(std::move(runtime), std::move(context)), to_(to), pass_(pass) {}

  /// Nobody else is receiving from there.
  void let_loop_receive() { ask_for_receiver(); }

  void settle_with(Decoder& result, detail::ContinuationSink* sink) override {
    TypedCall<void>::settle_with(result, sink);
    take_context()->runner().on_delivered(to_, pass_);
  }
  void on_failed(const Error& error) noexcept override {
    tell([to = to_, pass = pass_, error](ContextState& context) {
      context.runner().on_lost(to, pass, text_by([&error] {
                                 return fmt::format("gradients were lost: {}", error.message());
                               }));
    });
  }

 private:
  const int to_;
  const uint64_t pass_;
};

class OrderCall final : public detail::TypedCall<RunReport>, private PassCall {
 public:
  using PassCall::PassCall;
  void settle_with(Decoder& result, detail::ContinuationSink* sink) override {
    TypedCall<RunReport>::settle_with(result, sink);
    take_context();
  }
  void on_failed(const Error& error) noexcept override {
    tell([error](ContextState& context) {
      context.fail(text_by([&error] { return failure_of(error); }));
    });
  }
};

}  // namespace

std::string failure_of(const Error& error) {
  return error.code() == ErrorCode::kRemoteError ? error.remote_text() : error.message();
}

void send_gradients(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                    const ReturnedGradients& returned) {
  using Function = detail::RemoteFunction<sys_autograd_gradients>;
  Encoder arguments;
  Function::encode(arguments, returned);
  const bool leads = context->is_led_here();
  auto call = detail::make_ref<GradientCall>(agent.runtime().shared_from_this(), std::move(context),
                                             to, returned.pass.number);
  // No timeout: if the pass is given up, so is every worker's wait for these gradients.
  agent.start_call(*call, Function::entry(), Destination(to, Timeout(0)), true, arguments);
  // The creator waits for that worker itself.
  if (!leads) call->let_loop_receive();
}

Future<RunReport> send_run_order(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                                 const RunOrder& order) {
  using Function = detail::RemoteFunction<sys_autograd_run>;
  Encoder arguments;
  Function::encode(arguments, order);
  auto call = detail::make_ref<OrderCall>(agent.runtime().shared_from_this(), std::move(context));
  agent.start_call(*call, Function::entry(), Destination(to, Timeout(0)), true, arguments);
  return detail::FutureAccess::make<RunReport>(std::move(call));
}

}  // namespace weft::autograd
