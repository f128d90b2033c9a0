// ContextState as rpc::Companion: records the calls made in the context and their replies.
// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "autograd/context_state.h"
#include "autograd/note.h"

namespace weft::autograd {

namespace {

// A call made in a context while gradients are off: what it returns needs none.
class Unrecorded final : public rpc::Companion {
 public:
  detail::Ref<rpc::Companion> on_call(rpc::AgentCore&, const WorkerInfo&, const Encoder&,
                                      rpc::Note&) override {
    return {};
  }
  void on_reply(const WorkerInfo&, std::span<const std::byte>,
                std::span<at::Tensor> tensors) override {
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.requires_grad()) tensor.set_requires_grad(false);
    }
  }
  void on_answer(const WorkerInfo&, const Encoder*, rpc::Note&) override {}
};

}  // namespace

// Zero if there is nothing to record.
uint64_t ContextState::record(int to, const Encoder& message) {
  Edges edges;
  for (const Encoder::OutgoingTensor& tensor : message.tensors()) {
    if (!tensor.requires_grad) continue;
    edges.push_back(edge_of(tensor.keep));
    if (!edges.back().is_valid()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a tensor that requires a gradient lost its history when it was gathered to be "
                  "sent; make it contiguous first, outside of inference mode");
    }
  }
  return edges.empty() ? 0 : tape_.record(to, std::move(edges));
}

detail::Ref<rpc::Companion> ContextState::on_call(rpc::AgentCore& agent, const WorkerInfo& to,
                                                  const Encoder& arguments, rpc::Note& note) {
  if (!is_of(agent)) return {};
  if (!c10::GradMode::is_enabled()) return detail::make_ref<Unrecorded>();
  if (!check_is_good()) return {};
  participants_.add(to.id);
  const uint64_t message = record(to.id, arguments);
  // If the context has ended meanwhile, the tape may not have the message.
  if (!check_is_good()) return {};
  note = encode_note(CallNote{id_, message});
  return detail::Ref<rpc::Companion>::share(this);
}

void ContextState::on_reply(const WorkerInfo& from, std::span<const std::byte> note,
                            std::span<at::Tensor> tensors) {
  if (note.empty()) {
    // Unless it has ended here too, its graph there is lost.
    return fail(fmt::format("{} has given the context up", from.name));
  }
  const auto reply = decode_note<ReplyNote>(note);
  if (reply.message == ReplyNote::kEnded) {
    if (from.id == creator() && !is_led_here()) {
      let_go();
    } else {
      fail(fmt::format("{} says that the context has ended", from.name));
    }
    return;
  }
  if (!is_good()) return;
  participants_.add_from(reply);
  on_received(from, reply.message, tensors);
}

void ContextState::on_received(const WorkerInfo& from, uint64_t message,
                               std::span<at::Tensor> tensors) {
  if (message != 0) begin_at(std::make_shared<Receipt>(id_, from.id, message), tensors);
}

void ContextState::on_answer(const WorkerInfo& to, const Encoder* value, rpc::Note& note) {
  if (!is_good()) return;
  ReplyNote reply;
  participants_.tell(reply);
  if (value) reply.message = record(to.id, *value);
  // If the context has ended meanwhile, the tape may not have the message, and its number would say
  // that the value needs no gradient. Without a note the caller knows that the context is over.
  if (!is_good()) return;
  note = encode_note(reply);
}

}  // namespace weft::autograd
