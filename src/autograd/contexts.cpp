// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/contexts.h"

#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "autograd/note.h"
#include "autograd/reserved_functions.h"
#include "autograd/without_memory.h"
#include "base/log.h"
#include "rpc/resend.h"

namespace weft::autograd {

namespace {

constexpr auto kTellTimeout = std::chrono::seconds(10);
constexpr size_t kMostGivenUp = 100'000;
// Contexts that end within so long are told of together.
constexpr auto kEndTogether = std::chrono::milliseconds(1);

std::shared_ptr<rpc::AgentExtension> make_contexts(rpc::AgentCore& agent) {
  register_reserved_functions();
  return std::make_shared<Contexts>(agent);
}
const size_t extension_index = rpc::register_agent_extension(&make_contexts);

// Calls in this scope do not belong to the call that this thread serves.
struct OnOnesOwn {
  detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
};

// The companion of a late call in a context that has ended: tells its caller so.
class Ended final : public rpc::Companion {
 public:
  detail::Ref<rpc::Companion> on_call(rpc::AgentCore&, const WorkerInfo&, const Encoder&,
                                      rpc::Note&) override {
    return {};
  }
  void on_reply(const WorkerInfo&, std::span<const std::byte>, std::span<at::Tensor>) override {}
  void on_answer(const WorkerInfo&, const Encoder*, rpc::Note& note) override {
    note = encode_note(ReplyNote{ReplyNote::kEnded, {}, false});
  }
};

// Nobody waits for the answer.
template <auto F, typename... Args>
void tell(rpc::AgentCore& agent, int rank, const Args&... args) {
  const OnOnesOwn here;
  try {
    rpc::own_call<F>(agent, rank, kTellTimeout, args...);
  } catch (const Error&) {
    // A worker that is not told asks.
  } catch (const std::bad_alloc&) {
    // The same.
  }
}

}  // namespace

void check_root(const at::Tensor& root) {
  std::string wrong;
  if (!root.defined()) {
    wrong = "an undefined tensor";
  } else if (!root.requires_grad()) {
    wrong = "a tensor that requires no gradient";
  } else if (root.numel() != 1) {
    wrong = fmt::format("a tensor of {} elements; a root must be a scalar", root.numel());
  } else if (!c10::isFloatingType(root.scalar_type())) {
    wrong = fmt::format("a tensor of {}", root.toString());
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a backward pass cannot begin with " + wrong);
  }
}

Contexts::Contexts(rpc::AgentCore& agent)
    : agent_(agent.weak_from_this()),
      agent_address_(&agent),
      runtime_(agent.runtime().shared_from_this()),
      watch_interval_(runtime_->options.rref_lease / 3) {}

Contexts& Contexts::of(rpc::AgentCore& agent) {
  return static_cast<Contexts&>(agent.extension(extension_index));
}

// --- the table -------------------------------------------------------------------------------

detail::Ref<ContextState> Contexts::create() {
  const base::MutexLock lock(mutex_);
  if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
  // Counted for the whole process: a tensor may outlive an agent, and there may be several agents.
  static std::atomic<uint64_t> last{0};
  const int64_t id = ContextState::make_id(runtime_->self().info.id, ++last);
  if (!telling_) telling_ = make_alarm(&Contexts::tell_ended);  // release() should need no memory
  auto state = detail::make_ref<ContextState>(*agent_address_, id);
  contexts_.emplace(id, state);
  return state;
}

detail::Ref<ContextState> Contexts::find(int64_t id) {
  const base::MutexLock lock(mutex_);
  auto found = contexts_.find(id);
  return found == contexts_.end() ? detail::Ref<ContextState>() : found->second;
}

detail::Ref<ContextState> Contexts::get(int64_t id) {
  if (auto state = find(id)) return state;
  check_not_given_up(id);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} has no part in an autograd context {} (any more)", runtime_->name(), id));
}

detail::Ref<ContextState> Contexts::find_part(int64_t id) {
  auto state = find(id);
  if (!state) check_not_given_up(id);
  return state;
}

detail::Ref<ContextState> Contexts::led_by(const WorkerInfo& leader, int64_t id) {
  if (ContextState::creator_of(id) != leader.id) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} leads a pass of context {}, which is not its own", leader.name, id));
  }
  return get(id);
}

detail::Ref<ContextState> Contexts::join(const WorkerInfo& leader, int64_t id) {
  if (ContextState::creator_of(id) == leader.id) {
    if (auto state = find_or_join(id)) return state;
  }
  return led_by(leader, id);
}

// Null if this worker created the context, and it has ended.
detail::Ref<ContextState> Contexts::find_or_join(int64_t id) {
  const base::MutexLock lock(mutex_);
  if (auto found = contexts_.find(id); found != contexts_.end()) return found->second;
  if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
  if (ContextState::creator_of(id) == runtime_->self().info.id) return {};
  if (given_up_.contains(id)) refuse_given_up(id);
  auto state = detail::make_ref<ContextState>(*agent_address_, id);
  watch_before_long();  // first: without memory for that, there is no part that nobody watches
  contexts_.emplace(id, state);
  return state;
}

// Out of the table; null if it is not there.
detail::Ref<ContextState> Contexts::take(int64_t id) {
  auto taken = contexts_.extract(id);
  return taken ? std::move(taken.mapped()) : detail::Ref<ContextState>();
}

void Contexts::check_not_given_up(int64_t id) {
  if (has_given_up(id)) refuse_given_up(id);
}

void Contexts::refuse_given_up(int64_t id) const {
  throw Error(ErrorCode::kContextAborted,
              fmt::format("autograd context {} was given up: {} could not reach the worker that "
                          "made it",
                          id, runtime_->name()));
}

// The creator is gone. If it only seemed so, the context must not go on as if nothing had happened.
void Contexts::give_up(int64_t id, const std::string& cause) {
  detail::Ref<ContextState> state;
  {
    const base::MutexLock lock(mutex_);
    if (!contexts_.contains(id)) return;
    if (given_up_.size() >= kMostGivenUp) given_up_.erase(given_up_.begin());
    given_up_.insert(id);  // first: without memory for that, the context is as it was
    state = take(id);
  }
  state->abort(cause);
}

void Contexts::forget(int64_t id) {
  detail::Ref<ContextState> state;
  {
    const base::MutexLock lock(mutex_);
    state = take(id);
  }
  if (state) state->let_go();
}

void Contexts::release(ContextState& state) {
  if (runtime_->is_forked_copy()) return;
  forget(state.id());  // first: what comes after it may lack memory
  std::set<int> others = state.participants().all();
  others.erase(runtime_->self().info.id);
  if (others.empty()) return;
  const base::MutexLock lock(mutex_);
  if (stopped_) return;
  // Before the ids are entered, so that no id waits without an alarm. tell_ended() waits for the
  // lock.
  telling_->set_by(runtime_->clock->now() + kEndTogether);
  for (const int rank : others) ended_[rank].push_back(state.id());
}

void Contexts::tell_ended() {
  std::map<int, std::vector<int64_t>> ended;
  {
    const base::MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  auto agent = agent_.lock();
  if (!agent || agent->stopped()) return;
  for (const auto& [rank, ids] : ended) tell<sys_autograd_release>(*agent, rank, ids);
}

std::shared_ptr<rpc::Alarm> Contexts::make_alarm(void (Contexts::*ring)()) {
  return rpc::Alarm::make(runtime_->io, [weak = weak_from_this(), ring] {
    if (auto contexts = weak.lock()) ((*contexts).*ring)();
  });
}

void Contexts::abort_everywhere(int64_t id, const std::string& cause) noexcept {
  const auto state = find(id);
  if (!state || ContextState::creator_of(id) != runtime_->self().info.id) return;
  state->abort(cause);
  auto agent = agent_.lock();
  if (!state->claim_telling() || !agent || agent->stopped()) return;
  try {
    for (const int rank : state->participants().all()) {
      if (rank != runtime_->self().info.id) tell<sys_autograd_abort>(*agent, rank, id, cause);
    }
  } catch (const std::bad_alloc&) {
    // A worker that is not told asks.
  }
}

bool Contexts::has_given_up(int64_t id) {
  const base::MutexLock lock(mutex_);
  return given_up_.contains(id);
}

Contexts::Status Contexts::status(int64_t id) {
  const auto state = find(id);
  if (!state) return Status::kEnded;
  return state->aborted() ? Status::kAborted : Status::kGood;
}

std::vector<detail::Ref<ContextState>> Contexts::all() {
  const base::MutexLock lock(mutex_);
  std::vector<detail::Ref<ContextState>> states;
  for (const auto& [id, state] : contexts_) states.push_back(state);
  return states;
}

Census Contexts::census() {
  Census census;
  for (const auto& state : all()) {
    ++census.contexts;
    census.messages += state->tape().size();
    census.gradients += state->gradients().size();
  }
  return census;
}

// --- as a part of the agent ------------------------------------------------------------------

detail::Ref<rpc::Companion> Contexts::on_note(const WorkerInfo& from,
                                              std::span<const std::byte> note,
                                              std::span<at::Tensor> tensors) {
  const auto call = decode_note<CallNote>(note);
  const int creator = ContextState::creator_of(call.context);
  if (creator < 0 || static_cast<size_t>(creator) >= runtime_->group.members.size()) {
    Decoder::fail(fmt::format("a call in context {}, whose creator nobody is", call.context));
  }
  const auto state = find_or_join(call.context);
  if (!state) return detail::make_ref<Ended>();
  state->check();
  state->on_received(from, call.message, tensors);
  return state;
}

rpc::Idleness Contexts::idleness() {
  for (const auto& state : all()) {
    if (state->runner().busy()) return {false, 0};
  }
  return {};
}

std::string Contexts::unfinished() { return "a backward pass runs"; }

void Contexts::on_stopping() {
  std::unordered_map<int64_t, detail::Ref<ContextState>> ended;
  std::array<std::shared_ptr<rpc::Alarm>, 2> alarms;
  {
    const base::MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    ended.swap(contexts_);
    alarms = {std::move(alarm_), std::move(telling_)};
  }
  const std::string cause = text_by([this] { return runtime_->name() + " was shut down"; });
  for (const auto& alarm : alarms) {
    if (alarm) alarm->remove();
  }
  for (const auto& [id, state] : ended) state->abort(cause);
}

void Contexts::on_member_gone(const WorkerInfo& member, const Error& why) {
  size_t ended = 0;
  for (const auto& state : all()) {
    if (state->creator() != member.id) continue;
    give_up(state->id(), "its creator is gone: " + why.message());
    ++ended;
  }
  if (ended == 0) return;
  base::log(LogLevel::kInfo, runtime_->name(),
            "{} autograd contexts end with {}, which made them: {}", ended, member.name,
            why.message());
}

void Contexts::describe(DebugInfo& info) {
  const Census counted = census();
  info.counters["autograd.contexts"] = counted.contexts;
  info.counters["autograd.messages"] = counted.messages;
  info.counters["autograd.gradients"] = counted.gradients;
}

// --- contexts of others ----------------------------------------------------------------------

void Contexts::watch_before_long() {
  if (!alarm_) alarm_ = make_alarm(&Contexts::watch);
  alarm_->set_by(runtime_->clock->now() + watch_interval_);
}

// Without memory the alarm rings again.
void Contexts::watch() {
  if (!ask_creators()) return;
  const base::MutexLock lock(mutex_);
  if (!stopped_) watch_before_long();
}

// False: no context of others is left here.
bool Contexts::ask_creators() {
  std::map<int, std::vector<int64_t>> by_creator;
  bool some = false;
  {
    const base::MutexLock lock(mutex_);
    for (const auto& [id, state] : contexts_) {
      if (state->creator() == runtime_->self().info.id) continue;
      some = true;
      if (!watching_.contains(state->creator())) by_creator[state->creator()].push_back(id);
    }
  }
  for (auto& [rank, ids] : by_creator) ask_creator(rank, std::move(ids));
  return some;
}

// No timeout: Liveness notices a creator that is gone.
void Contexts::ask_creator(int rank, std::vector<int64_t> ids) {
  auto agent = agent_.lock();
  if (!agent) return;
  {
    const base::MutexLock lock(mutex_);
    watching_.insert(rank);
  }
  try {
    rpc::call_until_answered<sys_autograd_watch>(*agent, rank, Timeout(0), ids)
        .on_ready([weak = weak_from_this(), rank, ids](const Future<std::vector<uint8_t>>& answer) {
          if (auto contexts = weak.lock()) contexts->on_watched(rank, ids, answer);
        });
  } catch (const std::bad_alloc&) {
    const base::MutexLock lock(mutex_);
    watching_.erase(rank);  // asked again at the next time
  }
}

void Contexts::on_watched(int rank, const std::vector<int64_t>& ids,
                          const Future<std::vector<uint8_t>>& answer) {
  {
    const base::MutexLock lock(mutex_);
    watching_.erase(rank);
  }
  if (const auto error = answer.error()) {
    if (error->code() != ErrorCode::kPeerLost) return;  // asked again at the next time
    return on_member_gone(runtime_->group.members[static_cast<size_t>(rank)].info, *error);
  }
  const std::vector<uint8_t> statuses = answer.wait();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto status = i < statuses.size() ? static_cast<Status>(statuses[i]) : Status::kEnded;
    if (status == Status::kEnded) forget(ids[i]);
    if (status == Status::kAborted) {
      if (const auto state = find(ids[i])) state->abort("its creator has given it up");
    }
  }
}

}  // namespace weft::autograd
