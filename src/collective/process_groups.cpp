// SPDX-License-Identifier: BSD-3-Clause
#include "collective/process_groups.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "collective/chunk_call.h"
#include "collective/reserved_functions.h"
#include "rpc/resend.h"
#include "weft/record.h"

namespace weft::collective {

namespace {

// So many groups that had failed when they were destroyed are remembered.
constexpr size_t kMostGone = 256;
// An operation that has waited this long asks the members it waits for, and again at this interval.
constexpr auto kWatchInterval = std::chrono::milliseconds(200);
// A member counts as gone when it has answered so often in a row that it has left: after about a
// second.
constexpr int kMostGoneAnswers = 5;

std::shared_ptr<rpc::AgentExtension> make_groups(rpc::AgentCore& agent) {
  register_reserved_functions();
  return std::make_shared<ProcessGroups>(agent);
}
const size_t extension_index = rpc::register_agent_extension(&make_groups);

/// What each member contributes to the meeting in new_group().
struct Proposal {
  std::vector<std::string> names;
  int64_t timeout_ns = 0;
  bool nccl = true;
  uint8_t all_reduce = 0;
  std::string carrier;  // its description; empty: none
  uint64_t id = 0;      // the group gets the first member's
};

std::string list(const std::vector<std::string>& names) {
  return fmt::format("[{}]", fmt::join(names, ", "));
}

void check_same(const std::string& own, const Proposal& mine, const std::string& other,
                const Proposal& theirs) {
  if (mine.names != theirs.names) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group: the order of the names is the order of the ranks; {} says "
                            "{}, {} says {}",
                            own, list(mine.names), other, list(theirs.names)));
  }
  if (mine.timeout_ns != theirs.timeout_ns) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group {}: {} wants a timeout of {} s, {} of {} s",
                            list(mine.names), own, static_cast<double>(mine.timeout_ns) * 1e-9,
                            other, static_cast<double>(theirs.timeout_ns) * 1e-9));
  }
  if (mine.nccl != theirs.nccl) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group {}: {} wants NCCL, {} does not", list(mine.names),
                            mine.nccl ? own : other, mine.nccl ? other : own));
  }
  if (mine.all_reduce != theirs.all_reduce) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group {}: {} wants way {} of all_reduce, {} way {}",
                            list(mine.names), own, mine.all_reduce, other, theirs.all_reduce));
  }
}

void check_names(const std::vector<std::string>& names, const std::string& self) {
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group {}: {} is named twice", list(names), *twice));
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), self)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("new_group {}: this worker, {}, is not in it", list(names), self));
  }
}

}  // namespace

class ProcessGroups::Sending {
 public:
  Sending(std::shared_ptr<ProcessGroups> groups, const Receiver& receiver)
      : groups_(std::move(groups)), receiver_(receiver) {
    const base::MutexLock lock(groups_->mutex_);
    ++groups_->sending_[receiver_];
  }
  ~Sending() {
    const base::MutexLock lock(groups_->mutex_);
    const auto found = groups_->sending_.find(receiver_);
    if (--found->second == 0) groups_->sending_.erase(found);
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

 private:
  const std::shared_ptr<ProcessGroups> groups_;
  const Receiver receiver_;
};

ProcessGroups::ProcessGroups(rpc::AgentCore& agent)
    : agent_(agent.weak_from_this()), runtime_(agent.runtime().shared_from_this()) {}

ProcessGroups& ProcessGroups::of(rpc::AgentCore& agent) {
  return static_cast<ProcessGroups&>(agent.extension(extension_index));
}

std::shared_ptr<ProcessGroupState> ProcessGroups::make(Agent& agent,
                                                       const std::vector<std::string>& given,
                                                       const GroupOptions& options,
                                                       std::optional<Carrier> carrier) {
  std::vector<std::string> names = given;
  if (names.empty()) {
    for (const WorkerInfo& member : agent.members()) names.push_back(member.name);
  }
  const std::string& self = runtime_->name();
  std::vector<WorkerInfo> members;
  for (const std::string& name : names) members.push_back(agent.info(name));
  check_names(names, self);
  const std::string no_carrier;
  if (carrier && carrier->of_members.size() != names.size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("wrap_group {}: {} members, and {} in the group that shall carry it "
                    "({})",
                    list(names), names.size(), carrier->of_members.size(), carrier->description));
  }

  Proposal mine{names,
                Timeout(options.timeout).count(),
                options.nccl,
                static_cast<uint8_t>(options.all_reduce),
                carrier ? carrier->description : std::string(),
                0};
  {
    const base::MutexLock lock(mutex_);
    mine.id = (static_cast<uint64_t>(runtime_->self().info.id) << 32) | next_++;
  }
  const auto proposals = agent.all_gather(mine, names, options.meeting_timeout);
  for (const auto& [name, theirs] : proposals) check_same(self, mine, name, theirs);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& theirs = proposals.at(names[i]).carrier;
    const std::string& wanted = carrier ? carrier->of_members[i] : no_carrier;
    if (theirs != wanted) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("new_group {}: the group that carries it is '{}' at {} and should be "
                              "'{}', as seen from {}",
                              list(names), theirs, names[i], wanted, self));
    }
  }

  const auto rank = std::find(names.begin(), names.end(), self) - names.begin();
  const auto group = std::make_shared<ProcessGroupState>(
      *detail::AgentAccess::core(agent), proposals.at(names.front()).id, std::move(members),
      static_cast<int>(rank), options, std::move(carrier));
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) throw Error(ErrorCode::kShuttingDown, self + " was shut down");
    groups_[group->id()] = group;
  }
  // No member sends a chunk before all members have the group.
  agent.barrier(names, options.meeting_timeout);
  return group;
}

std::shared_ptr<ProcessGroupState> ProcessGroups::find(uint64_t id) {
  const base::MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

void ProcessGroups::forget(uint64_t id, const std::optional<Error>& failure) {
  if (runtime_->is_forked_copy()) return;
  const base::MutexLock lock(mutex_);
  groups_.erase(id);
  std::erase_if(strikes_, [id](const auto& each) { return std::get<0>(each.first) == id; });
  if (!failure) return;
  gone_.emplace(id, *failure);
  if (gone_.size() > kMostGone) gone_.erase(gone_.begin());
}

ChunkReply ProcessGroups::why_gone(const ChannelId& id) {
  std::optional<Error> failure;
  if (const auto group = find(id.group)) {
    failure = group->failure_of_closed(id.channel);
  } else {
    const base::MutexLock lock(mutex_);
    // The group is being destroyed. A member that asks again will learn why.
    if (groups_.contains(id.group)) return {};
    if (const auto found = gone_.find(id.group); found != gone_.end()) failure = found->second;
  }
  if (!failure) return {true};
  return {true, static_cast<uint8_t>(failure->code()), failure->message()};
}

std::shared_ptr<void> ProcessGroups::begin_sending(const ChannelId& id, int worker) {
  return std::make_shared<Sending>(shared_from_this(), Receiver{id.group, id.channel, worker});
}

bool ProcessGroups::is_sending(const ChannelId& id, int worker) {
  const base::MutexLock lock(mutex_);
  return sending_.contains({id.group, id.channel, worker});
}

std::vector<std::shared_ptr<ProcessGroupState>> ProcessGroups::all() {
  std::vector<std::shared_ptr<ProcessGroupState>> groups;
  const base::MutexLock lock(mutex_);
  for (const auto& [id, group] : groups_) {
    if (auto alive = group.lock()) groups.push_back(std::move(alive));
  }
  return groups;
}

// --- watching --------------------------------------------------------------------------------

void ProcessGroups::watch_before_long() {
  if (alarm_set_.exchange(true, std::memory_order_acq_rel)) return;
  try {
    set_alarm();
  } catch (...) {
    alarm_set_.store(false, std::memory_order_release);  // the next operation tries again
    throw;
  }
}

void ProcessGroups::set_alarm() {
  std::shared_ptr<rpc::Alarm> alarm;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    if (!alarm_) {
      alarm_ = rpc::Alarm::make(runtime_->io, [weak = weak_from_this()] {
        if (const auto groups = weak.lock()) groups->watch();
      });
    }
    alarm = alarm_;
  }
  alarm->set(runtime_->clock->now() + kWatchInterval);
}

void ProcessGroups::watch() {
  alarm_set_.store(false, std::memory_order_release);
  if (ask_missing()) watch_before_long();
}

// False: no operation is under way.
bool ProcessGroups::ask_missing() {
  const base::Time since = runtime_->clock->now() - kWatchInterval;
  bool busy = false;
  std::set<Waited> waited;
  for (const auto& group : all()) {
    for (const auto& [id, channel] : group->channels()) {
      for (const auto& [rank, awaited] : channel->missing(since)) {
        waited.emplace(group->id(), id, rank);
        ask(group, id, rank, awaited);
      }
      busy = busy || channel->busy();
    }
  }
  {
    const base::MutexLock lock(mutex_);
    std::erase_if(strikes_, [&](const auto& each) { return !waited.contains(each.first); });
  }
  return busy;
}

void ProcessGroups::ask(const std::shared_ptr<ProcessGroupState>& group, uint32_t channel, int rank,
                        const Channel::Awaited& awaited) {
  const Waited waited{group->id(), channel, rank};
  {
    const base::MutexLock lock(mutex_);
    if (stopped_ || !asked_.insert(waited).second) return;
  }
  const auto agent = agent_.lock();
  if (!agent) return;
  const int worker = group->members()[static_cast<size_t>(rank)].id;
  try {
    // No timeout: the call fails when heartbeats find the member dead.
    rpc::call_until_answered<sys_collective_attends>(*agent, worker, Timeout(0),
                                                     ChannelId{group->id(), channel}, awaited)
        .on_ready(
            [self = shared_from_this(), group, channel, rank](const Future<ChunkReply>& answer) {
              self->on_answered(group, channel, rank, answer);
            });
  } catch (const std::bad_alloc&) {
    const base::MutexLock lock(mutex_);
    asked_.erase(waited);
    throw;
  }
}

void ProcessGroups::on_answered(const std::shared_ptr<ProcessGroupState>& group, uint32_t channel,
                                int rank, const Future<ChunkReply>& answer) {
  const Waited waited{group->id(), channel, rank};
  {
    const base::MutexLock lock(mutex_);
    asked_.erase(waited);
  }
  const ChannelId id{group->id(), channel};
  const WorkerInfo& member = group->members()[static_cast<size_t>(rank)];
  if (const auto error = answer.error()) {
    // With any other error this worker is shutting down, or the next watch() asks again.
    if (error->code() == ErrorCode::kPeerLost) on_lost(id, member, *error);
  } else if (const ChunkReply reception = answer.wait(); reception.gone) {
    // The chunk may have come since this worker asked.
    if (is_strike(waited, kMostGoneAnswers)) on_gone(id, member, reception);
  } else {
    const base::MutexLock lock(mutex_);
    strikes_.erase(waited);
  }
}

// Counts an answer that the member has left. True if that was the `number`th in a row.
bool ProcessGroups::is_strike(const Waited& waited, int number) {
  const base::MutexLock lock(mutex_);
  return ++strikes_[waited] >= number;
}

void ProcessGroups::on_gone(const ChannelId& id, const WorkerInfo& member,
                            const ChunkReply& reception) {
  if (reception.code == 0) {
    return on_lost(id, member, Error(ErrorCode::kPeerLost, "it has left the group"));
  }
  // The member told everybody why it failed, but that message may still be on its way here.
  const auto group = find(id.group);
  const auto channel = group ? group->find_channel(id.channel) : nullptr;
  if (channel) channel->fail_and_tell(told_error(reception.code, reception.cause));
}

void ProcessGroups::on_lost(const ChannelId& id, const WorkerInfo& member, const Error& error) {
  const auto group = find(id.group);
  const auto channel = group ? group->find_channel(id.channel) : nullptr;
  if (!channel) return;
  const bool is_ours = error.code() == ErrorCode::kShuttingDown ||
                       error.code() == ErrorCode::kInvalidArgument ||
                       error.code() == ErrorCode::kLimitExceeded;
  std::vector<std::string> names;
  for (const WorkerInfo& each : group->members()) names.push_back(each.name);
  channel->fail_and_tell(
      Error(is_ours ? error.code() : ErrorCode::kPeerLost,
            fmt::format("group {}: {} was lost: {}", list(names), member.name, error.message())));
}

// --- as an extension of the agent --------------------------------------------------------------

rpc::Idleness ProcessGroups::idleness() {
  for (const auto& group : all()) {
    for (const auto& [id, channel] : group->channels()) {
      if (channel->busy()) return {false, 0};
    }
  }
  return {};
}

std::string ProcessGroups::unfinished() { return "operations of process groups are not finished"; }

// Groups without an operation under way are left alone: their members may end in any order.
void ProcessGroups::on_member_gone(const WorkerInfo& member, const Error& why) {
  for (const auto& group : all()) {
    if (group->rank_of(member.id) < 0) continue;
    for (const auto& [id, channel] : group->channels()) {
      if (channel->busy()) on_lost({group->id(), id}, member, why);
    }
  }
}

void ProcessGroups::on_stopping() {
  std::shared_ptr<rpc::Alarm> alarm;
  {
    const base::MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    alarm = std::move(alarm_);
  }
  if (alarm) alarm->remove();
  for (const auto& group : all()) {
    group->fail(Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down"));
  }
}

}  // namespace weft::collective
