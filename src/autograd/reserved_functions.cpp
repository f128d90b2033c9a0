// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/reserved_functions.h"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "autograd/contexts.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/server.h"

namespace weft::autograd {

namespace {

Contexts& contexts() { return Contexts::of(rpc::IncomingCall::current()->server().agent()); }
WorkerInfo caller() { return rpc::IncomingCall::current()->caller(); }

Future<PassAnswer> refused(const Error& error) {
  return make_ready_future(PassAnswer{{}, static_cast<uint8_t>(error.code()), error.message()});
}

}  // namespace

Future<PassAnswer> sys_autograd_ask(PassId pass, std::vector<uint64_t> messages) {
  try {
    return contexts()
        .led_by(caller(), pass.context)
        ->runner()
        .ask(pass.number, std::move(messages));
  } catch (const Error& error) {
    return refused(error);
  }
}

Future<PassAnswer> sys_autograd_ask_root(detail::RRefTarget<at::Tensor> root, PassId pass) {
  try {
    check_root(root.value());
    return contexts().join(caller(), pass.context)->runner().ask_roots(pass.number, {root.value()});
  } catch (const Error& error) {
    return refused(error);
  }
}

Future<RunReport> sys_autograd_run(RunOrder order) {
  // The call that was to bring the context here failed: there is nothing to run.
  if (order.everything && order.gradients.empty() && !contexts().find(order.pass.context) &&
      !contexts().has_given_up(order.pass.context)) {
    return make_ready_future(RunReport());
  }
  return contexts().led_by(caller(), order.pass.context)->runner().run(std::move(order));
}

void sys_autograd_abort(int64_t context, std::string cause) {
  if (ContextState::creator_of(context) != caller().id) return;
  if (const auto state = contexts().find(context)) state->abort(cause);
}

void sys_autograd_release(std::vector<int64_t> ended) {
  for (const int64_t context : ended) {
    if (ContextState::creator_of(context) == caller().id) contexts().forget(context);
  }
}

// Gradients for what this worker has forgotten: the context is over here, or will be.
void sys_autograd_gradients(ReturnedGradients returned) {
  if (const auto state = contexts().find(returned.pass.context)) {
    state->runner().on_gradients(caller().id, std::move(returned));
  }
}

void sys_autograd_fail(int64_t context, std::string cause) {
  const auto state = contexts().find(context);
  if (state && state->participants().contains(caller().id)) {
    contexts().abort_everywhere(context, cause);
  }
}

std::vector<uint8_t> sys_autograd_watch(std::vector<int64_t> watched) {
  std::vector<uint8_t> statuses;
  for (const int64_t id : watched) statuses.push_back(static_cast<uint8_t>(contexts().status(id)));
  return statuses;
}

void register_reserved_functions() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::RemoteFunction<sys_autograd_ask>::reserve("sys.autograd.ask");
    detail::RemoteFunction<sys_autograd_ask_root>::reserve("sys.autograd.ask_root");
    detail::RemoteFunction<sys_autograd_run>::reserve("sys.autograd.run");
    detail::RemoteFunction<sys_autograd_abort>::reserve("sys.autograd.abort");
    detail::RemoteFunction<sys_autograd_release>::reserve("sys.autograd.release");
    detail::RemoteFunction<sys_autograd_gradients>::reserve("sys.autograd.gradients");
    detail::RemoteFunction<sys_autograd_fail>::reserve("sys.autograd.fail");
    detail::RemoteFunction<sys_autograd_watch>::reserve("sys.autograd.watch");
  });
}

}  // namespace weft::autograd
