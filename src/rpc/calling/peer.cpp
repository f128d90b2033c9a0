// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/peer.h"

#include <algorithm>

#include "weft/detail/ambient.h"

namespace weft::rpc {

namespace {

// Of the threads that call, in the order of their first calls: the main thread usually has 0.
size_t number_of_this_thread() {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace

Peer::Peer(std::shared_ptr<Runtime> runtime, const Member& member)
    : runtime_(std::move(runtime)),
      member_(member),
      window_(std::make_shared<SharedWindow>(runtime_->options.window_bytes)),
      first_(detail::make_ref<CallingLink>(runtime_, member_, window_)) {}

CallingLink& Peer::of_this_thread(CallLimits& limits) {
  // Threads of a crew come and go, and each would have a connection of its own.
  if (runtime_->connections == 1 || detail::BlockingObserver::current()) return *first_;
  const size_t index = number_of_this_thread() % runtime_->connections;
  if (index == 0) return *first_;
  CallingLink* link = further_[index].load(std::memory_order_acquire);
  return link && link->is_connected() ? *link : further(index, limits);
}

// No call may overtake an earlier one of the same thread. So the first takes the place of a
// connection only when no call goes over that one or waits for it, and does not give it back.
CallingLink& Peer::further(size_t index, CallLimits& limits) {
  CallingLink& link = make_further(index);
  // While the first does not stand either, the caller gets the error of its own connection.
  const bool is_first = &link == first_.get();
  if (is_first || !first_->is_connected()) return link;
  const auto enough = time_to_connect();
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(limits.deadline - runtime_->clock->now());
  const bool is_connected = link.wait_until_connected(std::min(enough, left));
  limits.connected = runtime_->clock->now();
  if (is_connected) return link;
  // That a call has little time says nothing about a connection that was begun just now.
  if (link.connects_since_less_than(enough) || !link.retire()) return link;
  further_[index].store(first_.get(), std::memory_order_release);
  return *first_;
}

std::chrono::milliseconds Peer::time_to_connect() const {
  const auto of_first = std::chrono::ceil<std::chrono::milliseconds>(first_->connecting_took());
  return std::max(kTimeToConnect, 4 * of_first);
}

CallingLink& Peer::make_further(size_t index) {
  const base::MutexLock lock(mutex_);
  if (CallingLink* link = further_[index].load(std::memory_order_relaxed)) return *link;
  if (closed_) return *first_;  // which says why
  made_.push_back(
      detail::make_ref<CallingLink>(runtime_, member_, window_, CallingLink::Rest::kWhenUnused));
  further_[index].store(made_.back().get(), std::memory_order_release);
  return *made_.back();
}

std::vector<detail::Ref<CallingLink>> Peer::all() const {
  std::vector<detail::Ref<CallingLink>> links{first_};
  const base::MutexLock lock(mutex_);
  links.insert(links.end(), made_.begin(), made_.end());
  return links;
}

const char* Peer::state_name() const {
  for (const auto& link : all()) {
    if (link->is_connected()) return link->state_name();
  }
  return first_->state_name();
}

void Peer::close(const Error& why) {
  {
    const base::MutexLock lock(mutex_);
    closed_ = true;
  }
  for (auto& link : all()) link->close(why);
}

}  // namespace weft::rpc
