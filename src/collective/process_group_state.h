// A process group on one of its members: who is in it, and its channels.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "collective/channels/channel.h"
#include "collective/devices/carrier.h"
#include "collective/dual_channel.h"
#include "rpc/agent_core.h"
#include "weft/process_group.h"

namespace weft::collective {

class ProcessGroups;

class ProcessGroupState : public std::enable_shared_from_this<ProcessGroupState> {
 public:
  ProcessGroupState(rpc::AgentCore& agent, uint64_t id, std::vector<WorkerInfo> members, int rank,
                    const GroupOptions& options, std::optional<Carrier> carrier = {});
  ~ProcessGroupState();

  uint64_t id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<WorkerInfo>& members() const { return members_; }
  /// Throws kInvalidArgument for a rank that nobody has.
  void check_rank(int rank) const;

  /// The channel for the operations of ProcessGroup.
  Channel& channel() { return *own_; }
  bool uses_nccl() const { return nccl_; }
  /// The channel for the group's own operations on `tensor`. The first time that `tensor` is on a
  /// GPU, this connects the members' GPUs, as connect() does.
  DualChannel dual(const at::Tensor& tensor);
  /// For operations of `channel` on the CPU. If the group has a carrier that no channel has yet, it
  /// is that of `channel` from now on: the members must come here in the same order.
  DualChannel on_cpu(const std::shared_ptr<Channel>& channel);
  /// If `device` is a GPU and the group uses NCCL, connects the members' GPUs for operations of
  /// `channel`: every member must call it at the same point of the channel's order. Else the same
  /// as on_cpu().
  DualChannel connect(const std::shared_ptr<Channel>& channel, at::Device device);

  /// Opens another sequence of operations. Every member must open its channels in the same order.
  std::shared_ptr<Channel> open_channel();
  void close_channel(Channel& channel);

  /// Null if the channel was closed, or if its number is far beyond those opened here so far. A
  /// channel that this member will open soon is made now, to keep what comes for it.
  std::shared_ptr<Channel> find_channel(uint32_t channel);
  /// Of a channel that find_channel() does not find: the error that it had failed with when it was
  /// closed, if it had failed; kLimitExceeded if its number is too far beyond those opened here.
  std::optional<Error> failure_of_closed(uint32_t channel);
  /// The rank in the group of the worker with the rank `worker`; -1 if it is no member.
  int rank_of(int worker) const;

  std::vector<std::pair<uint32_t, std::shared_ptr<Channel>>> channels();
  void fail(const Error& error);
  std::shared_ptr<rpc::AgentCore> agent() const { return agent_.lock(); }

 private:
  std::shared_ptr<Channel> make_channel(uint32_t id);
  DualChannel carry(const std::shared_ptr<Channel>& channel) WEFT_REQUIRES(carrying_);

  const std::weak_ptr<rpc::AgentCore> agent_;
  const uint64_t id_;
  const std::vector<WorkerInfo> members_;
  const int rank_;
  const Timeout timeout_;
  const bool nccl_;
  const AllReduceWay way_;
  std::shared_ptr<Channel> own_;  // set in the constructor
  const bool has_carrier_;
  base::Mutex connecting_;
  std::optional<DualChannel> connected_ WEFT_GUARDED_BY(connecting_);  // by the first on a GPU
  base::Mutex carrying_;
  std::optional<Carrier> carrier_ WEFT_GUARDED_BY(carrying_);  // until a channel has it
  // Set by the first operation on the CPU of a group that had a carrier.
  std::optional<DualChannel> carried_ WEFT_GUARDED_BY(carrying_);
  base::Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Channel>> channels_ WEFT_GUARDED_BY(mutex_);
  std::map<uint32_t, Error> closed_failures_ WEFT_GUARDED_BY(mutex_);
  uint32_t next_channel_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::collective
