// Companions: a layer above accompanies calls. A companion is current where user code runs, adds a
// note to the calls made there, and sees the tensors both ways.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/codec.h"
#include "weft/detail/ambient.h"
#include "weft/detail/ref_counted.h"
#include "weft/worker_info.h"

namespace weft::rpc {

class AgentCore;

/// The bytes that a companion sends along with a call or a reply.
using Note = std::vector<std::byte>;

class Companion : public detail::RefCounted {
 public:
  /// A call of `agent` is about to be sent; `note` travels with it. Returns the companion whose
  /// on_reply() gets the reply; null: none. An exception is thrown to the caller.
  virtual detail::Ref<Companion> on_call(AgentCore& agent, const WorkerInfo& to,
                                         const Encoder& arguments, Note& note) = 0;

  /// A reply came and is about to be decoded; `note` is empty if it has none. A failed reply has no
  /// tensors. Not called for a failed reply without a note.
  virtual void on_reply(const WorkerInfo& from, std::span<const std::byte> note,
                        std::span<at::Tensor> tensors) = 0;

  /// A call that came with a note is about to be answered; `note` travels with the reply. An
  /// exception becomes the answer. `value` is null if the function failed; then nothing may be
  /// thrown.
  virtual void on_answer(const WorkerInfo& to, const Encoder* value, Note& note) = 0;

  /// The companion of the user code on this thread; null if there is none.
  static Companion* current() {
    detail::Ambient* ambient = detail::Ambient::current();
    return ambient ? static_cast<Companion*>(ambient->companion()) : nullptr;
  }
};

}  // namespace weft::rpc
