// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/incoming_call.h"

#include <cxxabi.h>

#include <algorithm>
#include <new>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/demangle.h"
#include "base/log.h"
#include "rpc/agent_core.h"
#include "rpc/serving/desk.h"
#include "rpc/serving/server.h"
#include "rpc/serving/serving_link.h"

namespace weft::rpc {

namespace {

base::Time deadline_of(const wire::CallPrelude& prelude, base::Time now) {
  if (prelude.remaining_us == 0) return base::Time::max();
  // A claim of centuries must not overflow into the past.
  const uint64_t us = std::min<uint64_t>(prelude.remaining_us, uint64_t{1} << 50);
  return now + std::chrono::microseconds(us);
}

wire::FailedReply failed_reply_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const c10::Error& thrown) {
    // Its what() ends with pages of stack trace of another process.
    return {ErrorCode::kRemoteError, base::demangle(typeid(thrown)),
            thrown.what_without_backtrace()};
  } catch (const std::exception& thrown) {
    return {ErrorCode::kRemoteError, base::demangle(typeid(thrown)), thrown.what()};
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return {ErrorCode::kRemoteError, type ? base::demangle(*type) : "an unknown type",
            "thrown, but no std::exception"};
  }
}

}  // namespace

IncomingCall::IncomingCall(Server& server, detail::Ref<ServingLink> link, uint64_t id,
                           const detail::FunctionEntry& function, const wire::CallPrelude& prelude,
                           base::Time now)
    : link_(std::move(link)),
      server_(server),
      id_(id),
      function_(function),
      depth_(prelude.depth),
      arrived_(now),
      deadline_(deadline_of(prelude, now)) {
  link_->add(*this);
}

// An asynchronous function that dropped its promise has answered through kBrokenPromise; this is
// for a call that was never run.
IncomingCall::~IncomingCall() {
  if (claim_reply()) server_.on_answered(*this, true, time_in_user_code());
  link_->remove(*this);
}

IncomingCall* IncomingCall::current() {
  detail::Ambient* ambient = detail::Ambient::current();
  return ambient ? static_cast<IncomingCall*>(ambient->call()) : nullptr;
}

CallInFlight IncomingCall::describe(base::Time now) const {
  static constexpr const char* kStages[] = {
      "arrived", "in the backlog", "waiting for its arguments", "running", "returned a future"};
  std::string state = kStages[static_cast<size_t>(stage_.load(std::memory_order_relaxed))];
  if (cancelled()) state += ", given up by its caller";
  return {CallInFlight::Direction::kIncoming, function_.name, link_->caller().name,
          std::chrono::duration<double>(now - arrived_).count(), std::move(state)};
}

WorkerInfo IncomingCall::caller() const { return link_->caller(); }

void IncomingCall::run(std::span<const std::byte> arguments, std::span<at::Tensor> tensors) {
  detail::Arrival arrival(server_.runtime().agent, link_->caller(), detail::Arrival::Kind::kCall);
  Decoder decoder(arguments, tensors, &arrival);
  decoder_ = &decoder;
  serve([this] { function_.invoke(*this); });
  decoder_ = nullptr;
}

void IncomingCall::run_later(std::span<const std::byte> arguments, std::span<at::Tensor> tensors) {
  later_ = true;
  run(arguments, tensors);
}

// The thread that completes the last argument must not run a function.
void IncomingCall::run_when_ready(detail::Task run) {
  resume_ = std::move(run);
  auto self = detail::Ref<IncomingCall>::share(this);
  if (!decoder_->arrival()->must_wait()) {
    stage_.store(Stage::kInBacklog, std::memory_order_relaxed);
    return server_.add_to_backlog(std::move(self));
  }
  stage_.store(Stage::kAwaitsArguments, std::memory_order_relaxed);
  awaits_arguments_.store(true, std::memory_order_seq_cst);
  detail::when_all(decoder_->arrival()->take_needed(), [self](std::exception_ptr why_not) {
    if (!self->awaits_arguments_.exchange(false, std::memory_order_seq_cst)) return;
    self->why_not_ = std::move(why_not);
    self->do_or_give_up([&self] { self->server_.add_to_backlog(self); });
  });
  // A cancel that came before the call was seen to wait left it alone.
  if (cancelled_.load(std::memory_order_seq_cst)) give_up_waiting();
}

// The arguments of a call that nobody waits for do not stay until its turn comes or its object is
// made: a thread that takes the call from the backlog releases them.
void IncomingCall::give_up_waiting() noexcept {
  if (!awaits_arguments_.exchange(false, std::memory_order_seq_cst)) return;
  try {
    server_.add_to_backlog(detail::Ref<IncomingCall>::share(this));
  } catch (const std::exception&) {
    // No memory: what the call waits for releases it, and with it the arguments.
  }
}

void IncomingCall::resume() {
  detail::Task run = std::move(resume_);
  serve([&] {
    if (why_not_) std::rethrow_exception(why_not_);
    if (cancelled() || server_.runtime().clock->now() >= deadline_) {
      server_.runtime().counters.cancelled_unstarted.add();
      return refuse(ErrorCode::kTimeout, "given up by the caller before it began");
    }
    run();
  });
}

template <typename F>
void IncomingCall::serve(F body) {
  detail::Ambient::Scope scope(detail::Ref<detail::Ambient>::share(this));
  try {
    body();
  } catch (const Error& error) {
    if (in_user_code_) {
      fail(std::current_exception());
    } else {
      refuse(error.code(), error.code() == ErrorCode::kBadMessage
                               ? fmt::format("the arguments do not decode: {}", error.message())
                               : error.message());
    }
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being cancelled; swallowing that would abort the process
  } catch (const std::bad_alloc&) {
    if (in_user_code_) {
      fail(std::current_exception());
    } else {
      refuse(ErrorCode::kLimitExceeded, "there is no memory for the arguments");
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::park(std::vector<std::byte> memory, std::span<const std::byte> arguments,
                        std::vector<at::Tensor> tensors) {
  stage_.store(Stage::kInBacklog, std::memory_order_relaxed);
  parked_memory_ = std::move(memory);
  parked_arguments_ = arguments;
  if (parked_memory_.empty() && !arguments.empty()) {
    parked_memory_.assign(arguments.begin(), arguments.end());
    parked_arguments_ = parked_memory_;
  }
  parked_tensors_ = std::move(tensors);
}

bool IncomingCall::begin_or_hold() {
  try {
    return begins_anyway || !link_->hold_until_replies_are_taken(*this);
  } catch (const std::bad_alloc&) {
    return true;
  }
}

void IncomingCall::run_from_backlog() {
  if (resume_) return resume();
  decode_parked();
  if (auto next = link_->next_in_line()) server_.add_to_backlog(std::move(next));
}

void IncomingCall::give_up(const std::string& why) {
  link_->link().close();
  base::log(LogLevel::kError, server_.runtime().name(),
            "closing the connection from {}: {} could not be answered: {}", link_->caller().name,
            function_.name, why);
}

void IncomingCall::decode_parked() {
  if (cancelled() || server_.runtime().clock->now() >= deadline_) {
    server_.runtime().counters.cancelled_unstarted.add();
    return refuse(ErrorCode::kTimeout, "given up by the caller before it began");
  }
  run_later(parked_arguments_, parked_tensors_);
  parked_memory_ = {};
  parked_tensors_ = {};
}

// To look at the clock once more would be a tenth of what a short call costs: user code that begins
// as soon as the call has arrived began when it arrived.
void IncomingCall::begin_user_code() {
  const bool at_once = stage_.load(std::memory_order_relaxed) == Stage::kArrived;
  stage_.store(Stage::kRuns, std::memory_order_relaxed);
  in_user_code_ = true;
  user_code_began_ = at_once ? arrived_ : server_.runtime().clock->now();
  Desk::on_user_code(*this);
}

void IncomingCall::add_holder() {
  stage_.store(Stage::kReturnedFuture, std::memory_order_relaxed);
  link_->needs_no_thread(*this);
  add_ref();
}

// Given up: there is no memory for what brings the answer nearer, or a part of the answer is
// queued.
template <typename F>
void IncomingCall::do_or_give_up(const F& step) {
  try {
    step();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

void IncomingCall::reply(Encoder& value) {
  Note note;  // first: what is thrown while it is made is an answer too
  if (companion_) companion_->on_answer(link_->caller(), &value, note);
  if (!claim_reply()) return;
  wire::FrameHeader header{wire::FrameKind::kReply};
  header.id = id_;
  const base::Duration took = time_in_user_code();
  do_or_give_up([&] {
    if (!value.kept().empty()) server_.agent().keep_for_receiver(link_->caller(), value.kept());
    send(header, note, value);
  });
  server_.on_answered(*this, false, took);
}

void IncomingCall::fail(std::exception_ptr error) {
  do_or_give_up([&] { send_failed(failed_reply_of(std::move(error))); });
}

void IncomingCall::refuse(ErrorCode code, const std::string& why) { send_failed({code, "", why}); }

void IncomingCall::send_failed(const wire::FailedReply& failed) {
  if (!claim_reply()) return;
  const base::Duration took = time_in_user_code();
  do_or_give_up([&] {
    Note note;
    if (companion_) companion_->on_answer(link_->caller(), nullptr, note);
    Encoder body;
    wire::encode_failed(body, failed);
    wire::FrameHeader header{wire::FrameKind::kReply, wire::kFailed};
    header.id = id_;
    send(header, note, body);
  });
  server_.on_answered(*this, true, took);
}

// Answers to Weft's own small messages do not wait for bulk.
void IncomingCall::send(wire::FrameHeader header, const Note& note, Encoder& body) {
  const bool urgent =
      function_.reserved && body.payload().size() + body.tensor_bytes() <= Link::kMostUrgentBytes;
  const Link::Lane lane = urgent ? link_->link().lane_for_urgent() : Link::Lane::kNormal;
  if (note.empty()) return link_->send_reply(header, {}, body, lane);
  header.flags |= wire::kNoted;
  link_->send_reply(header, wire::NoteBytes(note).bytes(), body, lane);
}

base::Duration IncomingCall::time_in_user_code() const {
  return in_user_code_ ? server_.runtime().clock->now() - user_code_began_ : base::Duration(0);
}

void IncomingCall::cancel() {
  cancelled_.store(true, std::memory_order_seq_cst);
  give_up_waiting();
  std::vector<std::pair<detail::Ref<CallingLink>, uint64_t>> children;
  {
    const base::MutexLock lock(children_mutex_);
    children.swap(children_);
  }
  for (auto& [link, id] : children) link->cancel(id);
}

void IncomingCall::add_child(detail::Ref<CallingLink> link, uint64_t call_id) {
  const base::MutexLock lock(children_mutex_);
  if (children_.size() >= prune_at_) {
    std::erase_if(children_, [](auto& child) { return !child.first->is_pending(child.second); });
    prune_at_ = std::max<size_t>(16, 2 * children_.size());
  }
  children_.emplace_back(std::move(link), call_id);
}

}  // namespace weft::rpc
