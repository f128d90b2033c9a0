// SPDX-License-Identifier: BSD-3-Clause
#include "base/crew.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/spinner.h"
#include "base/thread_name.h"
#include "weft/error.h"

namespace weft::base {

namespace {

constexpr auto kIdleThreadLifetime = std::chrono::seconds(10);
// A thread that used less CPU than this since the last tick, and does not wait for a CPU, is
// blocked.
constexpr auto kHardlyAny = std::chrono::microseconds(100);
// Of the threads that are known to be blocked, which may be thousands, so many are looked at in one
// tick.
constexpr size_t kBlockedPerTick = 16;
constexpr int kStarvingTicks = 20;

Duration cpu_time(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Whether the thread runs or could run if it were given a CPU.
bool wants_cpu(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  char text[256];
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  if (bytes <= 0) return true;
  text[bytes] = 0;
  const char* name_end = std::strrchr(text, ')');  // "12 (name) S ..."
  return !name_end || name_end + 2 >= text + bytes || name_end[2] == 'R';
}

}  // namespace

// One thread of the crew. The functions that block tell it before and after.
class Crew::Member final : public detail::BlockingObserver {
 public:
  explicit Member(Crew& the_crew) : crew(the_crew), thread_(gettid()) {
    pthread_getcpuclockid(pthread_self(), &clock_);
  }

  // User code is about to wait: this thread gives the lead away if it has it, and its slot too.
  void before_blocking() override {
    if (depth_++ > 0) return;
    if (leading && crew.take_lead_from(*post, word(sequence, kUserCode))) leading = false;
    had_slot_ = has_slot();
    if (!had_slot_) return;
    give_slot();
    if (crew.work_is_possible()) crew.call_for_help();
  }
  // What was begun goes on at once, whatever the number of slots.
  void after_blocking() override {
    if (--depth_ > 0 || !std::exchange(had_slot_, false)) return;
    crew.used_slots_.fetch_add(1, std::memory_order_seq_cst);
    slot_.store(Slot::kUsed, std::memory_order_release);
  }

  bool has_slot() const { return slot_.load(std::memory_order_relaxed) != Slot::kNone; }
  bool take_slot() {
    if (has_slot()) return true;
    size_t used = crew.used_slots_.load(std::memory_order_relaxed);
    do {
      if (used >= crew.limits_.running) return false;
    } while (!crew.used_slots_.compare_exchange_weak(used, used + 1, std::memory_order_seq_cst));
    slot_.store(Slot::kUsed, std::memory_order_release);
    return true;
  }
  void give_slot() {
    if (slot_.exchange(Slot::kNone, std::memory_order_acq_rel) == Slot::kUsed)
      crew.used_slots_.fetch_sub(1, std::memory_order_seq_cst);
  }

  /// User code begins.
  void begin_run() {
    runs_.store(runs_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  enum class Slot : uint8_t { kNone, kUsed, kBlocked };
  Slot slot() const { return slot_.load(std::memory_order_acquire); }

  /// For the pulse: whether the slot counts, by whether the thread has used a CPU since the last
  /// look in the same run of user code.
  void look() {
    Slot slot = this->slot();
    if (slot == Slot::kNone) return;
    const uint32_t run = runs_.load(std::memory_order_acquire);
    const Duration cpu = cpu_time(clock_);
    const bool used_some = cpu - std::exchange(cpu_at_last_look_, cpu) >= kHardlyAny;
    if (std::exchange(run_at_last_look_, run) != run) return;
    if (slot == Slot::kUsed && !used_some && !wants_cpu(thread_)) {
      if (slot_.compare_exchange_strong(slot, Slot::kBlocked, std::memory_order_acq_rel))
        crew.used_slots_.fetch_sub(1, std::memory_order_seq_cst);
    } else if (slot == Slot::kBlocked && used_some) {
      crew.used_slots_.fetch_add(1, std::memory_order_seq_cst);
      if (!slot_.compare_exchange_strong(slot, Slot::kUsed, std::memory_order_acq_rel))
        crew.used_slots_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  Crew& crew;
  Post* post = nullptr;   // whose loop this thread leads, or led when the present user code began
  bool leading = false;   // as far as this thread knows; the post's word decides
  uint64_t sequence = 0;  // of the run of user code that this thread is in
  bool searching = false;
  std::condition_variable wake;
  Duty duty;

 private:
  const pid_t thread_;
  clockid_t clock_{};
  int depth_ = 0;
  bool had_slot_ = false;
  std::atomic<Slot> slot_{Slot::kNone};
  std::atomic<uint32_t> runs_{0};
  // The pulse's.
  uint32_t run_at_last_look_ = 0;
  Duration cpu_at_last_look_{0};
};

namespace {
thread_local void* this_member = nullptr;
}

// What a thread leaves behind is put in order also if user code ends the thread.
class Crew::Enrolment {
 public:
  explicit Enrolment(Member& member) : member_(member) {
    this_member = &member;
    detail::BlockingObserver::set_current(&member);
    const MutexLock lock(member.crew.mutex_);
    member.crew.members_.push_back(&member);
  }
  ~Enrolment() {
    Crew& crew = member_.crew;
    detail::BlockingObserver::set_current(nullptr);
    this_member = nullptr;
    // Then it ends inside user code, which may have lost the lead.
    if (member_.leading) crew.take_lead_from(*member_.post, word(member_.sequence, kUserCode));
    member_.give_slot();
    if (member_.searching) crew.searching_.fetch_sub(1, std::memory_order_seq_cst);
    crew.end(member_);
  }
  Enrolment(const Enrolment&) = delete;

 private:
  Member& member_;
};

Crew::Crew(std::string name, Limits limits, Pulse& pulse, std::weak_ptr<void> keepalive)
    : name_(std::move(name)), limits_(limits), pulse_(pulse), keepalive_(std::move(keepalive)) {}

Crew::~Crew() = default;

Crew::Member& Crew::me() { return *static_cast<Member*>(this_member); }

void Crew::add(CrewLoop& loop) { posts_.push_back(std::make_unique<Post>(loop)); }

void Crew::start(const CrewLoop& loop) {
  const auto found = std::find_if(posts_.begin(), posts_.end(),
                                  [&loop](auto& post) { return &post->loop == &loop; });
  bool first;
  {
    const MutexLock lock(mutex_);
    if (std::exchange((*found)->started, true)) return;
    first = members_.empty() && alive_.load(std::memory_order_relaxed) == 0;
  }
  const Duty duty{Duty::Kind::kLead, found->get()};
  if (!first) return assign(duty);
  if (!spawn(duty)) throw Error(ErrorCode::kLimitExceeded, "cannot start a thread for " + name_);
}

// --- the lead --------------------------------------------------------------------------------

void Crew::enter_user_code(bool rare) {
  Member& member = me();
  std::atomic<uint64_t>& lead = member.post->lead;
  const uint64_t sequence = (lead.load(std::memory_order_relaxed) >> 2) + 1;
  member.sequence = sequence;
  member.begin_run();
  lead.store(word(sequence, kUserCode), std::memory_order_release);
  // The pulse watches how long the user code takes.
  if (rare) {
    pulse_.touch_briefly();
  } else {
    pulse_.touch();
  }
}

bool Crew::still_leads() const {
  auto* member = static_cast<Member*>(this_member);
  return member && member->post &&
         member->post->lead.load(std::memory_order_acquire) == word(member->sequence, kUserCode);
}

bool Crew::leave_user_code() {
  Member& member = me();
  uint64_t expected = word(member.sequence, kUserCode);
  if (member.post->lead.compare_exchange_strong(expected, word(member.sequence, kPolling),
                                                std::memory_order_acq_rel)) {
    return true;
  }
  member.leading = false;
  member.give_slot();
  return false;
}

void Crew::give_up_lead() {
  Member& member = me();
  take_lead_from(*member.post, word(member.sequence, kUserCode));
}

bool Crew::take_lead_from(Post& post, uint64_t seen) {
  const uint64_t sequence = (seen >> 2) + 1;
  if (!post.lead.compare_exchange_strong(seen, word(sequence, kVacant), std::memory_order_acq_rel))
    return false;
  assign({Duty::Kind::kLead, &post});
  return true;
}

// --- slots and the backlog -------------------------------------------------------------------

bool Crew::take_slot() { return me().take_slot(); }
void Crew::give_slot() { me().give_slot(); }

bool Crew::work_is_possible() const {
  return backlog_ && backlog_->waiting() > 0 &&
         used_slots_.load(std::memory_order_seq_cst) < limits_.running;
}

// A helper that stops searching looks at the backlog once more afterwards, so either it sees the
// task that this thread has added, or this thread sees that nobody searches.
void Crew::call_for_help() {
  if (used_slots_.load(std::memory_order_seq_cst) >= limits_.running) return;
  size_t nobody = 0;
  if (!searching_.compare_exchange_strong(nobody, 1, std::memory_order_seq_cst)) return;
  assign({Duty::Kind::kHelp, nullptr});
}

void Crew::found_work() {
  Member& member = me();
  member.begin_run();
  taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!std::exchange(member.searching, false)) return;
  searching_.fetch_sub(1, std::memory_order_seq_cst);
  if (work_is_possible()) call_for_help();
}

// `was_called`: counted as searching already.
void Crew::help(Member& member, bool was_called) {
  if (!backlog_) return;
  if (!was_called) searching_.fetch_add(1, std::memory_order_seq_cst);
  member.searching = true;
  Spinner spinner;
  spinner.begin(limits_.spin);
  while (!stopping()) {
    if (backlog_->waiting() > 0 && member.take_slot()) {
      const bool ran = backlog_->run_one();
      member.give_slot();
      if (ran) {
        if (!std::exchange(member.searching, true))
          searching_.fetch_add(1, std::memory_order_seq_cst);
        spinner.begin(limits_.spin);
        continue;
      }
    }
    if (spinner.again()) continue;
    member.searching = false;
    searching_.fetch_sub(1, std::memory_order_seq_cst);
    if (!work_is_possible()) return;
    searching_.fetch_add(1, std::memory_order_seq_cst);
    member.searching = true;
  }
  member.searching = false;
  searching_.fetch_sub(1, std::memory_order_seq_cst);
}

// --- the pulse -------------------------------------------------------------------------------

void Crew::on_tick() {
  for (auto& post : posts_) {
    const uint64_t now = post->lead.load(std::memory_order_acquire);
    const bool slow = now == post->lead_at_last_tick && (now & 3) == kUserCode;
    post->lead_at_last_tick = now;
    if (slow && take_lead_from(*post, now)) post->loop.on_slow_user_code();
  }
  for (const Duty& lead : take_all_unassigned()) {
    pulse_.touch();
    assign(lead);
  }
  if (!backlog_ || backlog_->waiting() == 0) {
    starving_ticks_ = 0;
    return;
  }
  pulse_.touch();
  free_slots_of_blocked();
  rescue_if_starving();
  // As many as can work at once: tasks that block may wait for each other.
  const size_t used = running();
  const size_t searching = searching_.load(std::memory_order_seq_cst);
  const size_t possible = used < limits_.running ? limits_.running - used : 0;
  const size_t wanted = std::min(possible, backlog_->waiting());
  for (size_t i = searching; i < wanted; ++i) {
    searching_.fetch_add(1, std::memory_order_seq_cst);
    assign({Duty::Kind::kHelp, nullptr});
  }
}

void Crew::rescue_if_starving() {
  const uint32_t taken = taken_.load(std::memory_order_relaxed);
  const bool moved = std::exchange(taken_at_last_tick_, taken) != taken;
  starving_ticks_ = moved || running() < limits_.running ? 0 : starving_ticks_ + 1;
  if (starving_ticks_ < kStarvingTicks) return;
  starving_ticks_ = 0;  // one at a time
  assign({Duty::Kind::kRescue, nullptr});
}

void Crew::free_slots_of_blocked() {
  const MutexLock lock(mutex_);
  size_t blocked = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = *members_[(first_to_look_at_ + i) % members_.size()];
    if (member.slot() == Member::Slot::kBlocked && ++blocked > kBlockedPerTick) continue;
    member.look();
  }
  first_to_look_at_ += kBlockedPerTick;  // so that all have their turn
}

// --- threads ---------------------------------------------------------------------------------

void Crew::assign(Duty duty) {
  {
    const MutexLock lock(mutex_);
    if (!stopping() && !idle_.empty()) {
      Member* member = idle_.back();
      idle_.pop_back();
      member->duty = duty;
      member->wake.notify_one();
      return;
    }
  }
  // A loop is led even beyond the limit: its leader answers pings and refuses calls.
  const bool within_limit = duty.kind == Duty::Kind::kLead || !out_of_threads();
  if (stopping() || !within_limit) return note_unassigned(duty);
  spawn(duty);
}

// The thread that finishes first, or the pulse, takes a lead; a helper is called again by the
// pulse.
void Crew::note_unassigned(Duty duty) {
  if (duty.kind == Duty::Kind::kHelp) searching_.fetch_sub(1, std::memory_order_seq_cst);
  if (duty.kind != Duty::Kind::kLead) return;
  {
    const MutexLock lock(mutex_);
    duty.post->unassigned = true;
  }
  pulse_.touch();
}

std::vector<Crew::Duty> Crew::take_all_unassigned() {
  std::vector<Duty> all;
  const MutexLock lock(mutex_);
  for (Duty lead = take_unassigned(); lead.kind != Duty::Kind::kNone; lead = take_unassigned())
    all.push_back(lead);
  return all;
}

Crew::Duty Crew::take_unassigned() {
  for (auto& post : posts_) {
    if (std::exchange(post->unassigned, false)) return {Duty::Kind::kLead, post.get()};
  }
  return {};
}

bool Crew::spawn(Duty duty) {
  alive_.fetch_add(1, std::memory_order_relaxed);
  try {
    std::thread([self = shared_from_this(), keepalive = keepalive_.lock(), duty] {
      self->thread_main(duty);
    }).detach();
    return true;
  } catch (const std::exception& error) {
    {
      const MutexLock lock(mutex_);
      count_end();
    }
    log(LogLevel::kError, name_, std::string("cannot start a thread: ") + error.what());
    note_unassigned(duty);
    return false;
  }
}

void Crew::thread_main(Duty duty) {
  name_this_thread(name_);
  Member member(*this);
  const Enrolment enrolment(member);
  while (duty.kind != Duty::Kind::kNone) {
    take_turn(member, duty);
    duty = stand_by(member);
  }
}

void Crew::take_turn(Member& member, Duty duty) {
  const bool called = duty.kind == Duty::Kind::kHelp;
  if (duty.kind == Duty::Kind::kLead) {
    const uint64_t sequence = duty.post->lead.load(std::memory_order_acquire) >> 2;
    member.post = duty.post;
    member.leading = true;
    duty.post->lead.store(word(sequence, kPolling), std::memory_order_release);
    duty.post->loop.lead();
    member.leading = false;
    member.give_slot();
  }
  if (duty.kind == Duty::Kind::kRescue) backlog_->run_short();
  help(member, called);
}

// One decision, so that of several threads that end at the same time one is the last.
void Crew::end(Member& member) {
  {
    const MutexLock lock(mutex_);
    std::erase(members_, &member);
    if (!stopping() || alive_.load(std::memory_order_relaxed) > 1) return count_end();
  }
  for (auto& post : posts_) post->loop.on_end();
  const MutexLock lock(mutex_);
  count_end();
}

void Crew::count_end() {
  alive_.fetch_sub(1, std::memory_order_relaxed);
  all_gone_.notify_all();
}

Crew::Duty Crew::stand_by(Member& member) {
  MutexLock lock(mutex_);
  if (stopping()) return {};
  if (const Duty lead = take_unassigned(); lead.kind != Duty::Kind::kNone) return lead;
  if (idle_.size() >= limits_.standing_by) return {};
  member.duty = {};
  idle_.push_back(&member);
  while (member.duty.kind == Duty::Kind::kNone) {
    const bool timed_out =
        member.wake.wait_for(lock.for_waiting(), kIdleThreadLifetime) == std::cv_status::timeout;
    if (member.duty.kind != Duty::Kind::kNone) break;
    if (stopping() || (timed_out && idle_.size() > 1)) {
      std::erase(idle_, &member);
      return {};
    }
  }
  return member.duty;
}

size_t Crew::idle() const {
  const MutexLock lock(mutex_);
  return idle_.size();
}

bool Crew::stop(Duration patience) {
  {
    const MutexLock lock(mutex_);
    stopping_.store(true, std::memory_order_seq_cst);
    for (Member* member : idle_) member->wake.notify_one();
  }
  for (auto& post : posts_) post->loop.interrupt();
  MutexLock lock(mutex_);
  return all_gone_.wait_for(lock.for_waiting(), patience,
                            [this] { return alive_.load(std::memory_order_relaxed) == 0; });
}

}  // namespace weft::base
