// All process groups that an agent is in, and how it notices that a member is lost.
//
// A chunk that cannot be sent fails its channel. While an operation waits for chunks of
// other members, the agent asks those members now and then whether they still have the channel: a
// member that is dead, frozen or has left the group is found in this way.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "collective/process_group_state.h"
#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"
#include "rpc/io/alarm.h"

namespace weft::collective {

class ProcessGroups final : public rpc::AgentExtension,
                            public std::enable_shared_from_this<ProcessGroups> {
 public:
  explicit ProcessGroups(rpc::AgentCore& agent);
  static ProcessGroups& of(rpc::AgentCore& agent);

  /// Meets the other members and makes a group with them.
  std::shared_ptr<ProcessGroupState> make(Agent& agent, const std::vector<std::string>& names,
                                          const GroupOptions& options,
                                          std::optional<Carrier> carrier = {});
  std::shared_ptr<ProcessGroupState> find(uint64_t id);
  /// The group was destroyed here. `failure`: the error it had failed with, if it had; members that
  /// ask later are told.
  void forget(uint64_t id, const std::optional<Error>& failure);
  /// The answer to a member that sends something to a channel that is not here.
  ChunkReply why_gone(const ChannelId& channel);
  /// A chunk of the channel is on its way to that worker as long as the result lives. The channel
  /// may be closed meanwhile: an operation ends here when the chunks that it sent are copied.
  std::shared_ptr<void> begin_sending(const ChannelId& channel, int worker);
  bool is_sending(const ChannelId& channel, int worker);

  /// A member does not have the channel any more.
  void on_gone(const ChannelId& channel, const WorkerInfo& member, const ChunkReply& reception);
  /// A member could not be reached.
  void on_lost(const ChannelId& channel, const WorkerInfo& member, const Error& error);
  /// To be called when an operation has begun: it is watched until it is over.
  void watch_before_long();

  // rpc::AgentExtension:
  rpc::Idleness idleness() override;
  std::string unfinished() override;
  void on_stopping() override;
  void on_member_gone(const WorkerInfo& member, const Error& why) override;

 private:
  class Sending;
  // A worker that a chunk is on its way to.
  using Receiver = std::tuple<uint64_t, uint32_t, int>;  // group, channel, id of the worker
  // A member whose chunk a channel waits for.
  using Waited = std::tuple<uint64_t, uint32_t, int>;  // group, channel, rank

  std::vector<std::shared_ptr<ProcessGroupState>> all();
  void set_alarm();
  void watch();
  bool ask_missing();
  void ask(const std::shared_ptr<ProcessGroupState>& group, uint32_t channel, int rank,
           const Channel::Awaited& awaited);
  void on_answered(const std::shared_ptr<ProcessGroupState>& group, uint32_t channel, int rank,
                   const Future<ChunkReply>& answer);
  bool is_strike(const Waited& waited, int number);

  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  std::atomic<bool> alarm_set_{false};

  base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::weak_ptr<ProcessGroupState>> groups_ WEFT_GUARDED_BY(mutex_);
  std::map<uint64_t, Error> gone_ WEFT_GUARDED_BY(mutex_);  // groups that had failed
  std::set<Waited> asked_ WEFT_GUARDED_BY(mutex_);          // members that have not answered yet
  // How often in a row a member has answered that it has left.
  std::map<Waited, int> strikes_ WEFT_GUARDED_BY(mutex_);
  std::map<Receiver, size_t> sending_ WEFT_GUARDED_BY(mutex_);  // chunks on their way
  std::shared_ptr<rpc::Alarm> alarm_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collective
