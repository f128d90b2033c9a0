// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/serving_link.h"

#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "rpc/agent_core.h"
#include "rpc/functions/function_table.h"
#include "rpc/serving/desk.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/server.h"
#include "transport/poller.h"

namespace weft::rpc {

namespace {

constexpr uint32_t kMaxFunctions = 1 << 20;
constexpr uint32_t kLowNumbers = 1 << 14;
constexpr size_t kMostHighNumbers = 1 << 14;
// Between two calls of a batch, whose replies are otherwise sent together.
constexpr size_t kMuchUnsent = size_t{1} << 20;
constexpr size_t kMostEarlyCancels = 64;

ResolvedFunction look_up(const wire::CallPrelude& prelude) {
  const FunctionLookup found = find_function(prelude.name, prelude.signature);
  if (found.found && found.found->ambiguous) {
    return {
        nullptr, ErrorCode::kUnknownFunction,
        fmt::format("two functions of this program are called \"{}\"; give one another name with "
                    "weft::expose<function>(\"name\")",
                    prelude.name)};
  }
  if (found.found) return {found.found, {}, {}};
  if (found.name_exists) {
    return {
        nullptr, ErrorCode::kSignatureMismatch,
        fmt::format("\"{}\" has other parameters or another result in this program", prelude.name)};
  }
  return {nullptr, ErrorCode::kUnknownFunction,
          fmt::format("this program has no function \"{}\"; a program that serves it says {}",
                      prelude.name, how_to_expose(prelude.name))};
}

}  // namespace

ServingLink::ServingLink(Server& server, Desk& desk, detail::Ref<Link> link, WorkerInfo caller,
                         UntakenReplies& untaken)
    : server_(server),
      keepalive_(server.agent().shared_from_this()),
      desk_(desk),
      link_(std::move(link)),
      caller_(std::move(caller)),
      unsent_(untaken),
      interest_(transport::kReadable) {}

// Throws kBadMessage for a number that is too high, or one of too many.
ResolvedFunction& ServingLink::function_slot(uint32_t number) {
  if (number < kLowNumbers) {
    if (number >= functions_.size()) functions_.resize(number + 1);
    return functions_[number];
  }
  const auto known = functions_of_high_numbers_.find(number);
  if (known != functions_of_high_numbers_.end()) return known->second;
  if (number >= kMaxFunctions || functions_of_high_numbers_.size() == kMostHighNumbers)
    Decoder::fail(fmt::format("function number {}", number));
  return functions_of_high_numbers_[number];
}

const ResolvedFunction& ServingLink::resolve(const wire::CallPrelude& prelude, uint8_t flags) {
  ResolvedFunction& function = function_slot(prelude.function);
  if (flags & wire::kNamed) {
    function = look_up(prelude);
  } else if (!function.entry && function.why.empty()) {
    Decoder::fail(fmt::format("function number {} was never named", prelude.function));
  }
  return function;
}

// A reply counts as untaken while it is queued, which takes long if it is large or many are: or all
// calls would be begun meanwhile.
class ServingLink::LargeReply {
 public:
  LargeReply(ServingLink& link, size_t bytes) : link_(link), bytes_(bytes) {
    link_.being_queued_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~LargeReply() { link_.being_queued_.fetch_sub(bytes_, std::memory_order_relaxed); }
  LargeReply(const LargeReply&) = delete;

 private:
  ServingLink& link_;
  const size_t bytes_;
};

void ServingLink::send_reply(const wire::FrameHeader& header, std::span<const std::byte> note,
                             Encoder& value, Link::Lane lane) {
  link_->stage(value, Link::Originals::kDropped);
  size_t bytes = value.payload().size();
  for (const Encoder::OutgoingTensor& tensor : value.tensors()) {
    if (!tensor.staged) bytes += tensor.bytes;
  }
  if (bytes < kMuchUnsent) {
    link_->queue(header, note, value, lane);
  } else {
    const LargeReply large(*this, bytes);
    update_interest();
    link_->queue(header, note, value, lane);
  }
  if (!Desk::flushes_later(*this)) flush();
}

void ServingLink::flush() { update_interest(link_->flush()); }

// Computed and told under one lock, so that of two threads the later one's view stays.
void ServingLink::update_interest(Link::State flushed) {
  const base::MutexLock lock(interest_mutex_);
  if (!is_watched_) return;
  const bool reads =
      unsent_.set(link_->unsent_bytes() + being_queued_.load(std::memory_order_relaxed));
  // A leader that is told of a broken connection drops it.
  const bool tells = reads || flushed == Link::State::kBroken;
  uint32_t wanted = tells ? transport::kReadable : transport::kNothing;
  // The leader serves what it holds when it is told that the connection is writable, which it is.
  const bool serves_held = reads && holds_calls_.load(std::memory_order_relaxed);
  if (link_->blocked() || serves_held) wanted |= transport::kWritable;
  paused_.store(!reads, std::memory_order_relaxed);
  if (std::exchange(interest_, wanted) != wanted) desk_.watch(*this, wanted);
  if (reads && !waiting_.empty()) let_waiting_begin();
}

// The first of them begins in any case. Otherwise calls that are read as soon as the link goes on
// could keep those that wait from ever beginning.
void ServingLink::let_waiting_begin() {
  waiting_.front()->begins_anyway = true;
  try {
    for (; !waiting_.empty(); waiting_.pop_front()) server_.add_to_backlog(waiting_.front());
  } catch (const std::bad_alloc&) {
    link_->close();  // the leader finds it closed
  }
}

bool ServingLink::hold_until_replies_are_taken(IncomingCall& call) {
  if (!paused()) return false;
  const base::MutexLock lock(interest_mutex_);
  if (!paused() || !is_watched_) return false;
  waiting_.push_back(detail::Ref<IncomingCall>::share(&call));
  return true;
}

// Replies that are left are never taken.
void ServingLink::stop_watching() {
  std::list<detail::Ref<IncomingCall>> waiting;  // destroyed outside the lock
  const base::MutexLock lock(interest_mutex_);
  if (!std::exchange(is_watched_, false)) return;
  desk_.unwatch(*this);
  unsent_.set(0);
  waiting.swap(waiting_);
}

bool ServingLink::takes_next_call() {
  if (link_->unsent_bytes() < kMuchUnsent) return true;
  update_interest(link_->blocked() ? Link::State::kFine : link_->flush());
  if (!paused()) return true;
  holds_calls_.store(true, std::memory_order_relaxed);
  update_interest();  // again: another thread may have ended the pause without knowing of the calls
  if (paused()) return false;
  holds_calls_.store(false, std::memory_order_relaxed);
  return true;
}

void ServingLink::describe_calls(std::vector<CallInFlight>& calls, bool reserved_too,
                                 base::Time now) {
  const base::MutexLock lock(mutex_);
  calls_.for_each([&](IncomingCall& call) {
    if (reserved_too || !is_reserved(call.function())) calls.push_back(call.describe(now));
  });
}

void ServingLink::add(IncomingCall& call) {
  const base::MutexLock lock(mutex_);
  calls_.add(call);
  call_count_.store(calls_.size(), std::memory_order_relaxed);
  if (is_reserved(call.function())) return;
  call.works = true;
  working_count_.store(working_calls() + 1, std::memory_order_relaxed);
}

void ServingLink::remove(IncomingCall& call) {
  const base::MutexLock lock(mutex_);
  calls_.remove(call);
  call_count_.store(calls_.size(), std::memory_order_relaxed);
  if (call.works) working_count_.store(working_calls() - 1, std::memory_order_relaxed);
}

void ServingLink::needs_no_thread(IncomingCall& call) {
  const base::MutexLock lock(mutex_);
  if (std::exchange(call.works, false))
    working_count_.store(working_calls() - 1, std::memory_order_relaxed);
}

void ServingLink::cancel(uint64_t call_id) {
  detail::Ref<IncomingCall> found;
  {
    const base::MutexLock lock(mutex_);
    calls_.find(call_id, [&found](IncomingCall& call) {
      // A call whose last owner is about to remove it is answered already.
      if (!call.try_add_ref()) return false;
      found = detail::Ref<IncomingCall>::adopt(&call);
      return true;
    });
  }
  if (found) return found->cancel();
  if (early_cancels_.size() < kMostEarlyCancels) {
    early_cancels_.push_back(call_id);
  } else {
    early_cancels_[next_early_cancel_++ % kMostEarlyCancels] = call_id;
  }
}

bool ServingLink::take_early_cancel(uint64_t call_id) {
  return !early_cancels_.empty() && std::erase(early_cancels_, call_id) > 0;
}

bool ServingLink::stand_in_line(detail::Ref<IncomingCall> call) {
  const base::MutexLock lock(mutex_);
  if (closed_) return false;
  line_.push_back(std::move(call));
  line_length_.store(line_.size(), std::memory_order_release);
  return line_.size() == 1;
}

detail::Ref<IncomingCall> ServingLink::next_in_line() {
  detail::Ref<IncomingCall> first;  // destroyed outside the lock
  const base::MutexLock lock(mutex_);
  if (line_.empty()) return {};
  first = std::move(line_.front());
  line_.pop_front();
  line_length_.store(line_.size(), std::memory_order_release);
  return line_.empty() ? detail::Ref<IncomingCall>() : line_.front();
}

void ServingLink::cancel_all() {
  std::vector<detail::Ref<IncomingCall>> calls;
  std::list<detail::Ref<IncomingCall>> line;  // its calls keep the link; needs no memory
  {
    const base::MutexLock lock(mutex_);
    closed_ = true;
    line.swap(line_);
    line_length_.store(0, std::memory_order_release);
    try {
      calls.reserve(call_count_.load(std::memory_order_relaxed));
    } catch (const std::bad_alloc&) {
      return;  // they are not told, and run to their end
    }
    calls_.for_each([&calls](IncomingCall& call) {
      if (call.try_add_ref()) calls.push_back(detail::Ref<IncomingCall>::adopt(&call));
    });
  }
  for (auto& call : calls) {
    try {
      call->cancel();
    } catch (const std::exception&) {
      // No memory: it is not told either.
    }
  }
}

}  // namespace weft::rpc
