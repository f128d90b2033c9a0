// SPDX-License-Identifier: BSD-3-Clause
#include "collective/process_group_state.h"

#include <algorithm>
#include <exception>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "collective/chunk_call.h"
#include "collective/nccl/nccl_comm.h"
#include "collective/process_groups.h"
#include "collective/reserved_functions.h"
#include "rpc/own_call.h"

namespace weft::collective {

namespace {

constexpr auto kTellTimeout = std::chrono::seconds(10);
// A member may have opened so many channels more than another.
constexpr uint32_t kMostUnopened = 1024;

// How the channels of a group reach the other members.
class AgentOutside final : public Channel::Outside {
 public:
  AgentOutside(rpc::AgentCore& agent, ChannelId id, std::vector<WorkerInfo> members, int rank)
      : agent_(agent.weak_from_this()),
        runtime_(agent.runtime().shared_from_this()),
        id_(id),
        members_(std::move(members)),
        rank_(rank) {}

  base::Time now() const override { return runtime_->clock->now(); }
  void send(int to, const Chunk& chunk, bool lasting, std::function<void()> arrived) override {
    if (const auto agent = agent_.lock()) {
      send_chunk(*agent, members_[static_cast<size_t>(to)], {chunk, lasting}, std::move(arrived));
    }
  }
  detail::ContinuationSink* sink() override { return &runtime_->io; }
  void later(std::function<void()> task) override { runtime_->io.post_long_task(std::move(task)); }
  void watch() override {
    if (const auto agent = agent_.lock()) ProcessGroups::of(*agent).watch_before_long();
  }
  void tell_failed(const Error& error) override {
    const auto agent = agent_.lock();
    if (!agent) return;
    const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
    for (size_t i = 0; i < members_.size(); ++i) {
      if (static_cast<int>(i) == rank_) continue;
      try {
        rpc::own_call<sys_collective_fail>(*agent, members_[i].id, kTellTimeout, id_,
                                           static_cast<uint8_t>(error.code()), error.message());
      } catch (const std::exception&) {
        // That member is gone, or will notice the failure by itself; or there is no memory.
      }
    }
  }
  std::string name(int rank) const override { return members_[static_cast<size_t>(rank)].name; }
  std::string group_name() const override {
    std::vector<std::string> names;
    for (const WorkerInfo& member : members_) names.push_back(member.name);
    return fmt::format("group [{}]", fmt::join(names, ", "));
  }

 private:
  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const ChannelId id_;
  const std::vector<WorkerInfo> members_;
  const int rank_;
};

}  // namespace

ProcessGroupState::ProcessGroupState(rpc::AgentCore& agent, uint64_t id,
                                     std::vector<WorkerInfo> members, int rank,
                                     const GroupOptions& options, std::optional<Carrier> carrier)
    : agent_(agent.weak_from_this()),
      id_(id),
      members_(std::move(members)),
      rank_(rank),
      timeout_(options.timeout),
      nccl_(options.nccl),
      way_(options.all_reduce),
      has_carrier_(carrier.has_value()),
      carrier_(std::move(carrier)) {
  own_ = open_channel();
}

ProcessGroupState::~ProcessGroupState() {
  std::optional<Error> failure;
  for (const auto& [id, channel] : channels()) {
    if (!failure) failure = channel->failure();
    channel->fail(Error(ErrorCode::kInvalidArgument, "the group was destroyed"));
  }
  if (!failure && !closed_failures_.empty()) failure = closed_failures_.begin()->second;
  if (const auto agent = agent_.lock()) ProcessGroups::of(*agent).forget(id_, failure);
}

void ProcessGroupState::check_rank(int rank) const {
  if (rank >= 0 && rank < size()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("rank {} in a group of {} members", rank, size()));
}

int ProcessGroupState::rank_of(int worker) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const WorkerInfo& each) { return each.id == worker; });
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::shared_ptr<Channel> ProcessGroupState::make_channel(uint32_t id) {
  const auto agent = agent_.lock();
  if (!agent) throw Error(ErrorCode::kShuttingDown, "the agent of this group was shut down");
  const ChannelId channel{id_, id};
  return std::make_shared<Channel>(
      channel, rank_, size(), timeout_,
      std::make_shared<AgentOutside>(*agent, channel, members_, rank_));
}

std::shared_ptr<Channel> ProcessGroupState::open_channel() {
  const base::MutexLock lock(mutex_);
  const auto found = channels_.find(next_channel_);
  const auto channel = found != channels_.end() ? found->second : make_channel(next_channel_);
  channels_[next_channel_++] = channel;
  return channel;
}

DualChannel ProcessGroupState::dual(const at::Tensor& tensor) {
  if (nccl_ && tensor.defined() && tensor.is_cuda()) {
    const base::MutexLock lock(connecting_);
    if (!connected_) connected_.emplace(connect(own_, tensor.device()));
    return *connected_;
  }
  if (!has_carrier_) return DualChannel(own_, way_);
  const base::MutexLock lock(carrying_);
  if (!carried_) carried_.emplace(carry(own_));
  return *carried_;
}

DualChannel ProcessGroupState::on_cpu(const std::shared_ptr<Channel>& channel) {
  if (!has_carrier_) return DualChannel(channel, way_);
  const base::MutexLock lock(carrying_);
  return carry(channel);
}

DualChannel ProcessGroupState::carry(const std::shared_ptr<Channel>& channel) {
  const std::optional<Carrier> carrier = std::exchange(carrier_, std::nullopt);
  if (!carrier) return DualChannel(channel, way_);
  return DualChannel(channel, way_, DeviceChannel::of_met(channel, at::kCPU, carrier->connect()));
}

DualChannel ProcessGroupState::connect(const std::shared_ptr<Channel>& channel, at::Device device) {
  if (!nccl_ || !device.is_cuda()) return on_cpu(channel);
  auto comm = make_nccl_comm(channel->place_in(channel->everybody()), device);
  return DualChannel(channel, way_, DeviceChannel::meet(channel, device, std::move(comm)));
}

void ProcessGroupState::close_channel(Channel& channel) {
  std::shared_ptr<Channel> closed;
  {
    const base::MutexLock lock(mutex_);
    for (auto at = channels_.begin(); at != channels_.end(); ++at) {
      if (at->second.get() != &channel) continue;
      closed = std::move(at->second);
      if (const auto failure = closed->failure()) closed_failures_.emplace(at->first, *failure);
      channels_.erase(at);
      break;
    }
  }
  channel.fail(Error(ErrorCode::kInvalidArgument, "it was destroyed"));
}

std::shared_ptr<Channel> ProcessGroupState::find_channel(uint32_t channel) {
  const base::MutexLock lock(mutex_);
  const auto found = channels_.find(channel);
  if (found != channels_.end()) return found->second;
  if (channel < next_channel_ || channel - next_channel_ > kMostUnopened) return nullptr;
  return channels_[channel] = make_channel(channel);
}

std::optional<Error> ProcessGroupState::failure_of_closed(uint32_t channel) {
  const base::MutexLock lock(mutex_);
  if (channel >= next_channel_) {
    return Error(ErrorCode::kLimitExceeded,
                 fmt::format("channel {} of a group of which this member has opened {} channels",
                             channel, next_channel_));
  }
  const auto found = closed_failures_.find(channel);
  return found == closed_failures_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::pair<uint32_t, std::shared_ptr<Channel>>> ProcessGroupState::channels() {
  const base::MutexLock lock(mutex_);
  return {channels_.begin(), channels_.end()};
}

void ProcessGroupState::fail(const Error& error) {
  for (const auto& [id, channel] : channels()) channel->fail(error);
}

}  // namespace weft::collective
