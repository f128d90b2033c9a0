// SPDX-License-Identifier: BSD-3-Clause
#include "collective/chunk_call.h"

#include <memory>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "collective/process_groups.h"
#include "collective/reserved_functions.h"
#include "rpc/resend.h"
#include "weft/detail/outgoing_call.h"

namespace weft::collective {

namespace {

class ChunkCall final : public detail::TypedCall<ChunkReply> {
 public:
  using Sending = std::shared_ptr<void>;  // of ProcessGroups::begin_sending()

  ChunkCall(rpc::AgentCore& agent, WorkerInfo to, OutgoingChunk sent, std::function<void()> arrived,
            Sending sending, rpc::Resending resending)
      : agent_(agent.weak_from_this()),
        runtime_(agent.runtime().shared_from_this()),
        to_(std::move(to)),
        sent_(std::move(sent)),
        arrived_(std::move(arrived)),
        sending_(std::move(sending)),
        resending_(resending) {}

  static void start(rpc::AgentCore& agent, const WorkerInfo& to, OutgoingChunk sent,
                    std::function<void()> arrived, Sending sending, rpc::Resending resending) {
    using Function = detail::RemoteFunction<sys_collective_chunk>;
    const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
    const c10::AutoGradMode off(false);
    Encoder arguments;
    Function::encode(arguments, sent.chunk);
    for (Encoder::OutgoingTensor& each : arguments.tensors()) each.borrowed = sent.lasting;
    auto call = detail::make_ref<ChunkCall>(agent, to, std::move(sent), std::move(arrived),
                                            std::move(sending), resending);
    // No timeout: the operation has one, and the call fails if the receiver is lost.
    agent.start_call(*call, Function::entry(), Destination(to.id, Timeout(0)), true, arguments);
    call->ask_for_receiver();
  }

  void settle_with(Decoder& result, detail::ContinuationSink* sink) override {
    TypedCall<ChunkReply>::settle_with(result, sink);
    const auto arrived = std::exchange(arrived_, {});
    sent_.chunk.tensors.clear();
    sending_.reset();
    // A receiver that has left without an error needs no chunk: it had all it wanted, maybe by an
    // earlier attempt to send this one. If this member still waits for the receiver, it asks.
    if (!this->value().gone || this->value().code == 0) {
      if (arrived) arrived();
      return;
    }
    post(*runtime_,
         [agent = agent_, to = to_, channel = sent_.chunk.channel, reception = this->value()] {
           if (const auto alive = agent.lock()) {
             ProcessGroups::of(*alive).on_gone(channel, to, reception);
           }
         });
  }

  // Sends the chunk again: the receiver drops a chunk that it has already.
  void on_failed(const Error& error) noexcept override {
    try {
      send_again(error);
    } catch (const std::exception& shortage) {
      base::log(
          LogLevel::kError, runtime_->name(),
          "a part of an operation for {} was lost, and the operation ends at its time limit: {}",
          to_.name, shortage.what());
    }
  }

 private:
  void send_again(const Error& error) {
    const auto agent = agent_.lock();
    if (!agent) return;
    auto sent = std::make_shared<OutgoingChunk>(std::move(sent_));
    const ChannelId channel = sent->chunk.channel;
    resending_.on_failed(
        *agent, to_.id, error,
        [weak = agent_, to = to_, sent, arrived = std::exchange(arrived_, {}),
         sending = std::exchange(sending_, {})](rpc::Resending next) {
          const auto alive = weak.lock();
          if (!alive) return;
          try {
            start(*alive, to, std::move(*sent), arrived, sending, next);
          } catch (const Error& failure) {
            ProcessGroups::of(*alive).on_lost(sent->chunk.channel, to, failure);
          }
        },
        [weak = agent_, runtime = runtime_, to = to_, channel](const Error& failure) {
          post(*runtime, [weak, to, channel, failure] {
            if (const auto alive = weak.lock())
              ProcessGroups::of(*alive).on_lost(channel, to, failure);
          });
        });
  }

  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const WorkerInfo to_;
  OutgoingChunk sent_;
  std::function<void()> arrived_;
  Sending sending_;
  const rpc::Resending resending_;
};

}  // namespace

void post(rpc::Runtime& runtime, detail::Task task) { runtime.io.post_task(std::move(task)); }

void send_chunk(rpc::AgentCore& agent, const WorkerInfo& to, const OutgoingChunk& sent,
                std::function<void()> arrived) {
  try {
    auto sending = ProcessGroups::of(agent).begin_sending(sent.chunk.channel, to.id);
    ChunkCall::start(agent, to, sent, std::move(arrived), std::move(sending), {});
  } catch (const Error& error) {
    ProcessGroups::of(agent).on_lost(sent.chunk.channel, to, error);
  }
}

}  // namespace weft::collective
