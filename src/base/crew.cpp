// SPDX-License-Identifier: BSD-3-Clause
#include "base/crew.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "weft/error.h"

namespace weft::base {

namespace {
constexpr auto kIdleThreadLifetime = std::chrono::seconds(10);
}

// One thread of the crew. The functions that block tell it before and after.
class Crew::Member final : public detail::BlockingObserver {
 public:
  explicit Member(Crew& crew) : crew_(crew) {}

  // User code is about to wait: this thread gives the lead away if it has it, and is not counted as
  // running while it waits. (take_lead_from() or help() has counted it as running before.)
  void before_blocking() override {
    if (depth_++ > 0) return;
    if (std::exchange(leading, false)) crew_.take_lead_from(word(sequence, kUserCode));
    crew_.running_.fetch_sub(1, std::memory_order_relaxed);
  }
  void after_blocking() override {
    if (--depth_ == 0) crew_.running_.fetch_add(1, std::memory_order_relaxed);
  }

  bool leading = false;   // as far as this thread knows; word_ decides
  uint64_t sequence = 0;  // of the run of user code that this thread is in
  std::condition_variable wake;
  Duty duty = Duty::kNone;

 private:
  Crew& crew_;
  int depth_ = 0;
};

namespace {
thread_local void* this_member = nullptr;
}

Crew::Crew(std::string name, Limits limits, CrewLoop& loop, Pulse& pulse,
           std::weak_ptr<void> keepalive)
    : name_(std::move(name)),
      limits_(limits),
      loop_(loop),
      pulse_(pulse),
      keepalive_(std::move(keepalive)) {}

void Crew::start() {
  if (!spawn(Duty::kLead))
    throw Error(ErrorCode::kLimitExceeded, "cannot start a thread for " + name_);
}

void Crew::enter_user_code() {
  auto& me = *static_cast<Member*>(this_member);
  const uint64_t sequence = (word_.load(std::memory_order_relaxed) >> 2) + 1;
  me.sequence = sequence;
  word_.store(word(sequence, kUserCode), std::memory_order_release);
  pulse_.touch();  // the pulse watches how long the user code takes
}

bool Crew::still_leads() const {
  auto* me = static_cast<Member*>(this_member);
  return me && word_.load(std::memory_order_acquire) == word(me->sequence, kUserCode);
}

bool Crew::leave_user_code() {
  auto& me = *static_cast<Member*>(this_member);
  uint64_t expected = word(me.sequence, kUserCode);
  if (word_.compare_exchange_strong(expected, word(me.sequence, kPolling),
                                    std::memory_order_acq_rel)) {
    return true;
  }
  me.leading = false;
  running_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void Crew::give_up_lead() {
  auto& me = *static_cast<Member*>(this_member);
  take_lead_from(word(me.sequence, kUserCode));
}

// The thread that loses the lead is counted as running from here until leave_user_code() notices.
bool Crew::take_lead_from(uint64_t seen) {
  running_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t sequence = (seen >> 2) + 1;
  if (!word_.compare_exchange_strong(seen, word(sequence, kVacant), std::memory_order_acq_rel)) {
    running_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  assign(Duty::kLead);
  return true;
}

void Crew::on_tick() {
  const uint64_t now = word_.load(std::memory_order_acquire);
  if (now == word_at_last_tick_ && (now & 3) == kUserCode) take_lead_from(now);
  word_at_last_tick_ = now;
  if (loop_.backlog_starves()) assign(Duty::kHelp);
  bool vacant;
  {
    std::lock_guard lock(mutex_);
    vacant = std::exchange(lead_unassigned_, false);
  }
  if (vacant) {
    pulse_.touch();
    assign(Duty::kLead);
  }
}

void Crew::assign(Duty duty) {
  {
    std::lock_guard lock(mutex_);
    if (stopping()) return;
    if (!idle_.empty()) {
      Member* member = idle_.back();
      idle_.pop_back();
      member->duty = duty;
      member->wake.notify_one();
      return;
    }
    if (alive_.load(std::memory_order_relaxed) >= limits_.threads) {
      // The thread that finishes first takes the lead.
      if (duty == Duty::kLead) lead_unassigned_ = true;
      return;
    }
  }
  spawn(duty);
}

bool Crew::spawn(Duty duty) {
  alive_.fetch_add(1, std::memory_order_relaxed);
  try {
    std::thread([self = shared_from_this(), keepalive = keepalive_.lock(), duty] {
      self->thread_main(duty);
    }).detach();
    return true;
  } catch (const std::system_error& error) {
    alive_.fetch_sub(1, std::memory_order_relaxed);
    log(LogLevel::kError, name_, std::string("cannot start a thread: ") + error.what());
    std::lock_guard lock(mutex_);
    if (duty == Duty::kLead) lead_unassigned_ = true;
    return false;
  }
}

void Crew::thread_main(Duty duty) {
  name_this_thread(name_);
  Member me(*this);
  this_member = &me;
  detail::BlockingObserver::set_current(&me);
  while (duty != Duty::kNone) {
    take_turn(me, duty);
    duty = stand_by(me);
  }
  std::lock_guard lock(mutex_);
  alive_.fetch_sub(1, std::memory_order_relaxed);
  all_gone_.notify_all();
}

void Crew::take_turn(Member& me, Duty duty) {
  if (duty == Duty::kLead) {
    const uint64_t sequence = word_.load(std::memory_order_acquire) >> 2;
    word_.store(word(sequence, kPolling), std::memory_order_release);
    me.leading = true;
    loop_.lead();
    me.leading = false;
  }
  help();
}

void Crew::help() {
  bool first = true;  // a thread that was called for help runs one task even above the limit
  while (!stopping()) {
    const size_t before = running_.fetch_add(1, std::memory_order_relaxed);
    const bool worked = (first || before < limits_.running) && loop_.run_from_backlog();
    running_.fetch_sub(1, std::memory_order_relaxed);
    if (!worked) return;
    first = false;
  }
}

Crew::Duty Crew::stand_by(Member& me) {
  std::unique_lock lock(mutex_);
  if (stopping()) return Duty::kNone;
  if (std::exchange(lead_unassigned_, false)) return Duty::kLead;
  if (idle_.size() >= limits_.standing_by) return Duty::kNone;
  me.duty = Duty::kNone;
  idle_.push_back(&me);
  while (me.duty == Duty::kNone) {
    const bool timed_out = me.wake.wait_for(lock, kIdleThreadLifetime) == std::cv_status::timeout;
    if (me.duty != Duty::kNone) break;
    if (stopping() || (timed_out && idle_.size() > 1)) {
      idle_.erase(std::find(idle_.begin(), idle_.end(), &me));
      return Duty::kNone;
    }
  }
  return me.duty;
}

size_t Crew::idle() const {
  std::lock_guard lock(mutex_);
  return idle_.size();
}

bool Crew::stop(Duration patience) {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true, std::memory_order_seq_cst);
    for (Member* member : idle_) member->wake.notify_one();
  }
  loop_.interrupt();
  std::unique_lock lock(mutex_);
  return all_gone_.wait_for(lock, patience,
                            [this] { return alive_.load(std::memory_order_relaxed) == 0; });
}

}  // namespace weft::base
