// One worker in this process and, beside it, a member of its group that a test plays by hand, frame
// by frame.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rpc/io/link.h"
#include "transport/loopback/loopback_transport.h"
#include "weft/agent.h"
#include "wire/call_prelude.h"
#include "wire/hello.h"

namespace weft::test {

/// Rank 1, called "other". The worker is rank 0, called "worker".
class HandmadePeer {
 public:
  /// In a queue of this process that takes any number of bytes, or as between processes.
  enum class Way { kLoopback, kTcp, kSharedMemory };
  explicit HandmadePeer(Way way = Way::kLoopback);
  ~HandmadePeer();

  Agent& worker() { return *worker_; }

  /// Connections without a hello: to the worker, or the next one from it.
  detail::Ref<rpc::Link> connect();
  detail::Ref<rpc::Link> accept();
  /// The same after both hellos.
  detail::Ref<rpc::Link> call_worker();
  detail::Ref<rpc::Link> serve_worker();

  /// What a hello of this member says.
  wire::Hello hello() const;
  static void say(rpc::Link& link, const wire::Hello& hello, std::string behind_it = {});

  static void send(rpc::Link& link, const wire::FrameHeader& header,
                   std::span<const std::byte> prelude = {}, const Encoder& value = Encoder());
  static void send_failed(rpc::Link& link, uint64_t call, const wire::FailedReply& failed);
  /// Waits for the next frame, which is link.frame() then; nothing if the worker closes instead.
  static std::optional<wire::FrameKind> next(rpc::Link& link);
  static std::string text(rpc::Link& link);

 private:
  detail::Ref<rpc::Link> link_of(std::unique_ptr<transport::Connection> connection);

  std::unique_ptr<transport::Transport> make_transport() const;

  const Way way_;
  const std::shared_ptr<transport::LoopbackNetwork> network_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
  std::string address_;
  std::unique_ptr<Agent> worker_;
};

}  // namespace weft::test
