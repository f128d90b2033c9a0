// SPDX-License-Identifier: BSD-3-Clause
#include "collective/part_call.h"

#include <memory>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "collective/groups.h"
#include "collective/reserved_functions.h"
#include "rpc/resend.h"
#include "weft/detail/outgoing_call.h"

namespace weft::collective {

namespace {

class PartCall final : public detail::TypedCall<Reception> {
 public:
  PartCall(rpc::AgentCore& agent, WorkerInfo to, Part part, std::function<void()> arrived,
           rpc::Resending resending)
      : agent_(agent.weak_from_this()),
        runtime_(agent.runtime().shared_from_this()),
        to_(std::move(to)),
        part_(std::move(part)),
        arrived_(std::move(arrived)),
        resending_(resending) {}

  static void start(rpc::AgentCore& agent, const WorkerInfo& to, Part part,
                    std::function<void()> arrived, rpc::Resending resending) {
    using Function = detail::RemoteFunction<sys_collective_part>;
    const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
    const c10::AutoGradMode off(false);
    Encoder arguments;
    Function::encode(arguments, part);
    auto call =
        detail::make_ref<PartCall>(agent, to, std::move(part), std::move(arrived), resending);
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

  // The member that receives drops a part that it has already.
  void on_failed(const Error& error) noexcept override {
    const auto agent = agent_.lock();
    if (!agent) return;
    auto part = std::make_shared<Part>(std::move(part_));
    const ChannelId channel = part->channel;
    resending_.on_failed(
        *agent, to_.id, error,
        [weak = agent_, to = to_, part,
         arrived = std::exchange(arrived_, {})](rpc::Resending next) {
          const auto alive = weak.lock();
          if (!alive) return;
          try {
            start(*alive, to, std::move(*part), arrived, next);
          } catch (const Error& failure) {
            Groups::of(*alive).on_lost(part->channel, to, failure);
          }
        },
        [weak = agent_, runtime = runtime_, to = to_, channel](const Error& failure) {
          post(*runtime, [weak, to, channel, failure] {
            if (const auto alive = weak.lock()) Groups::of(*alive).on_lost(channel, to, failure);
          });
        });
  }

 private:
  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const WorkerInfo to_;
  Part part_;
  std::function<void()> arrived_;
  const rpc::Resending resending_;
};

}  // namespace

void post(rpc::Runtime& runtime, detail::Task task) { runtime.io.post_task(std::move(task)); }

void send_part(rpc::AgentCore& agent, const WorkerInfo& to, const Part& part,
               std::function<void()> arrived) {
  try {
    PartCall::start(agent, to, part, std::move(arrived), {});
  } catch (const Error& error) {
    Groups::of(agent).on_lost(part.channel, to, error);
  }
}

}  // namespace weft::collective
