// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/server.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "rpc/agent_core.h"
#include "rpc/functions/function_table.h"

namespace weft::rpc {

namespace {
constexpr auto kKnownToTakeLong = std::chrono::milliseconds(1);
constexpr uint32_t kRescuesBeforeAny = 5;
}  // namespace

Server::Server(std::shared_ptr<Runtime> runtime, AgentCore& agent)
    : runtime_(std::move(runtime)), agent_(agent) {}

Server::~Server() = default;

size_t Server::desks_of(const Runtime& runtime) {
  return std::max<size_t>(1, std::min(runtime.cpus, runtime.handler_threads));
}

void Server::set_crew(base::Crew& crew) {
  crew_ = &crew;
  crew.set_backlog(*this);
  for (size_t i = 0; i < desks_of(*runtime_); ++i) {
    desks_.push_back(std::make_unique<Desk>(*this, *runtime_, crew));
    crew.add(*desks_.back());
  }
}

void Server::start() { crew_->start(*desks_.front()); }

// --- links -----------------------------------------------------------------------------------

Desk& Server::desk_for_next() const {
  return **std::min_element(desks_.begin(), desks_.end(), [](const auto& a, const auto& b) {
    return a->link_count() < b->link_count();
  });
}

Server::Adoption Server::adopt(detail::Ref<Link> link, const WorkerInfo& caller) {
  const base::MutexLock lock(mutex_);
  if (closed_) return Adoption::kClosed;
  Desk& desk = desk_for_next();
  if (!desk.add(detail::make_ref<ServingLink>(*this, desk, std::move(link), caller,
                                              untaken_replies_[caller.id])))
    return Adoption::kOutOfDescriptors;
  crew_->start(desk);
  return Adoption::kServed;
}

std::vector<detail::Ref<ServingLink>> Server::all_links() const {
  std::vector<detail::Ref<ServingLink>> all;
  for (const auto& desk : desks_) {
    for (auto& link : desk->links()) all.push_back(std::move(link));
  }
  return all;
}

void Server::finish_sending(base::Duration patience) {
  const base::Time until = std::chrono::steady_clock::now() + patience;
  for (auto& link : all_links()) {
    // Answers that are being written, and those that are still being made.
    while (link->link().flush() != Link::State::kBroken &&
           (link->link().unsent_bytes() > 0 || link->has_calls()) &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    link->link().finish_sending();
  }
}

void Server::close_all() {
  Backlog<int, detail::Ref<IncomingCall>> backlog;
  {
    const base::MutexLock lock(mutex_);
    closed_ = true;
    std::swap(backlog, backlog_);
    backlog_size_.store(0, std::memory_order_seq_cst);
  }
  for (auto& desk : desks_) {
    for (auto& link : desk->take_all()) {
      link->stop_watching();
      link->link().close();
      link->cancel_all();
    }
  }
}

size_t Server::links() const {
  size_t count = 0;
  for (const auto& desk : desks_) count += desk->link_count();
  return count;
}

void Server::describe_calls(std::vector<CallInFlight>& calls, bool reserved_too) const {
  for (const auto& link : all_links())
    link->describe_calls(calls, reserved_too, runtime_->clock->now());
}

// --- calls -----------------------------------------------------------------------------------

void Server::on_answered(IncomingCall& call, bool failed, base::Duration took) {
  statistics_.record(call.function().index, failed,
                     call.in_user_code() ? took : base::Duration(-1));
  if (!is_reserved(call.function())) runtime_->counters.serving.end();
}

void Server::add_to_backlog(detail::Ref<IncomingCall> call) {
  const int caller = call->caller().id;
  {
    const base::MutexLock lock(mutex_);
    if (closed_) return;
    backlog_.push(caller, std::move(call));
    backlog_size_.store(backlog_.size(), std::memory_order_seq_cst);
  }
  crew_->on_task_added();
}

template <typename F>
bool Server::run_one_that(const F& suits) {
  std::optional<detail::Ref<IncomingCall>> call;
  do {
    const base::MutexLock lock(mutex_);
    call = backlog_.pop_if(suits);
    if (!call) return false;
    backlog_size_.store(backlog_.size(), std::memory_order_seq_cst);
  } while (!(*call)->begin_or_hold());
  crew_->found_work();
  try {
    (*call)->run_from_backlog();
  } catch (const std::exception& error) {  // no memory
    (*call)->give_up(error.what());
  }
  return true;
}

bool Server::run_one() {
  return run_one_that([](const detail::Ref<IncomingCall>&) { return true; });
}

// Now and then any: the calls that use all slots may wait for one that takes long.
bool Server::run_short() {
  const bool found = run_one_that([this](const detail::Ref<IncomingCall>& call) {
    return !(*call).is_decoded() || statistics_.usual((*call).function().index) < kKnownToTakeLong;
  });
  return found || (++fruitless_rescues_ % kRescuesBeforeAny == 0 && run_one());
}

}  // namespace weft::rpc
