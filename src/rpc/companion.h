// What accompanies calls on behalf of a layer above: it is current where user code runs, travels
// with the calls made there, and sees the tensors both ways.
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

/// What travels with a call or a reply.
using Note = std::vector<std::byte>;

class Companion : public detail::RefCounted {
 public:
  /// A call of `agent` is about to be sent. What is put into `note` travels with it. Returns who is
  /// told of the reply; null: nobody. What is thrown is the caller's error.
  virtual detail::Ref<Companion> on_call(AgentCore& agent, const WorkerInfo& to,
                                         const Encoder& arguments, Note& note) = 0;

  /// A reply came, before it is decoded; `note` is empty if it has none. A failed one has no
  /// tensors; one that has no note either is not told of.
  virtual void on_reply(const WorkerInfo& from, std::span<const std::byte> note,
                        std::span<at::Tensor> tensors) = 0;

  /// A call that came with a note is about to be answered. What is thrown is the answer then.
  /// `value` is null if it failed; then nothing may be thrown.
  virtual void on_answer(const WorkerInfo& to, const Encoder* value, Note& note) = 0;

  /// Of the user code on this thread; null if there is none.
  static Companion* current() {
    detail::Ambient* ambient = detail::Ambient::current();
    return ambient ? static_cast<Companion*>(ambient->companion()) : nullptr;
  }
};

}  // namespace weft::rpc
