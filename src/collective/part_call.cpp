// SPDX-License-Identifier: BSD-3-Clause
#include "collective/part_call.h"

#include <memory>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "collective/groups.h"
#include "collective/reserved_functions.h"
#include "weft/detail/outgoing_call.h"

namespace weft::collective {

namespace {

constexpr int kMostSendings = 3;

class PartCall final : public detail::TypedCall<Reception> {
 public:
  PartCall(rpc::AgentCore& agent, WorkerInfo to, Part part, std::function<void()> arrived,
           int sendings)
      : agent_(agent.weak_from_this()),
        runtime_(agent.runtime().shared_from_this()),
        to_(std::move(to)),
        part_(std::move(part)),
        arrived_(std::move(arrived)),
        sendings_(sendings) {}

  static void start(rpc::AgentCore& agent, const WorkerInfo& to, Part part,
                    std::function<void()> arrived, int sendings) {
    using Function = detail::RemoteFunction<sys_collective_part>;
    const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
    const c10::AutoGradMode off(false);
    Encoder arguments;
    Function::encode(arguments, part);
    auto call =
        detail::make_ref<PartCall>(agent, to, std::move(part), std::move(arrived), sendings);
    // Bounded by the operation, and by the life of the receiver.
    agent.start_call(*call, Function::entry(), Destination(to.id, Timeout(0)), true, arguments);
    call->need_receiver();
  }

  void settle_with(Decoder& result, detail::ContinuationSink* sink) override {
    TypedCall<Reception>::settle_with(result, sink);
    const auto arrived = std::exchange(arrived_, {});
    part_.tensors.clear();
    if (!this->value().gone) {
      if (arrived) arrived();
      return;
    }
    post(*runtime_, [agent = agent_, to = to_, channel = part_.channel, reception = this->value()] {
      if (const auto alive = agent.lock()) {
        Groups::of(*alive).on_gone(channel, to, reception);
      }
    });
  }

  void on_failed(const Error& error) noexcept override {
    post(*runtime_, [agent = agent_, to = to_, part = std::move(part_),
                     arrived = std::exchange(arrived_, {}), sendings = sendings_, error]() mutable {
      const auto alive = agent.lock();
      if (!alive) return;
      if (error.code() == ErrorCode::kOutcomeUnknown && sendings < kMostSendings) {
        try {
          return start(*alive, to, std::move(part), std::move(arrived), sendings + 1);
        } catch (const Error&) {
          // Told as what it was first.
        }
      }
      Groups::of(*alive).on_lost(part.channel, to, error);
    });
  }

 private:
  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const WorkerInfo to_;
  Part part_;
  std::function<void()> arrived_;
  const int sendings_;
};

}  // namespace

void post(rpc::Runtime& runtime, detail::Task task) {
  auto* later = new detail::Continuation;
  later->task = std::move(task);
  runtime.io.post(later);
}

void send_part(rpc::AgentCore& agent, const WorkerInfo& to, const Part& part,
               std::function<void()> arrived) {
  try {
    PartCall::start(agent, to, part, std::move(arrived), 1);
  } catch (const Error& error) {
    Groups::of(agent).on_lost(part.channel, to, error);
  }
}

}  // namespace weft::collective
