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
#include "base/room.h"
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
  explicit Member(Crew& the_crew)
      : crew(the_crew), slot(the_crew.slots_), searcher(the_crew.search_), thread_(gettid()) {
    pthread_getcpuclockid(pthread_self(), &clock_);
  }

  // User code is about to wait: this thread gives the lead away if it has it, and its slot too.
  void before_blocking() override {
    if (depth_++ > 0) return;
    if (leading && crew.take_lead_from(*post, run)) leading = false;
    had_slot_ = slot.held();
    if (!had_slot_) return;
    slot.give();
    if (crew.work_is_possible()) crew.call_for_help();
  }
  // What was begun goes on at once, whatever the number of slots.
  void after_blocking() override {
    if (--depth_ > 0 || !std::exchange(had_slot_, false)) return;
    slot.take_beyond();
  }

  /// User code begins.
  void begin_run() {
    runs_.store(runs_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  /// For the pulse: whether the slot counts, by whether the thread has used a CPU since the last
  /// look in the same run of user code.
  void look() {
    const Slot::State state = slot.state();
    if (state == Slot::State::kNone) return;
    const uint32_t run_now = runs_.load(std::memory_order_acquire);
    const Duration cpu = cpu_time(clock_);
    const bool used_some = cpu - std::exchange(cpu_at_last_look_, cpu) >= kHardlyAny;
    if (std::exchange(run_at_last_look_, run_now) != run_now) return;
    if (state == Slot::State::kUsed && !used_some && !wants_cpu(thread_)) slot.on_blocked();
    if (state == Slot::State::kBlocked && used_some) slot.on_running();
  }

  Crew& crew;
  Slot slot;
  Searcher searcher;
  Post* post = nullptr;  // whose loop this thread leads, or led when the present user code began
  bool leading = false;  // as far as this thread knows; the post's lead decides
  Lead::Run run = 0;     // of user code, in which this thread is
  std::condition_variable wake;
  Duty duty;

 private:
  const pid_t thread_;
  clockid_t clock_{};
  int depth_ = 0;
  bool had_slot_ = false;
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
    if (member_.leading) crew.take_lead_from(*member_.post, member_.run);
    member_.slot.give();
    member_.searcher.end();
    crew.end(member_);
  }
  Enrolment(const Enrolment&) = delete;

 private:
  Member& member_;
};

Crew::Crew(std::string name, Limits limits, Pulse& pulse, std::weak_ptr<void> keepalive)
    : name_(std::move(name)),
      limits_(limits),
      pulse_(pulse),
      keepalive_(std::move(keepalive)),
      slots_(limits.running) {}

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
  member.begin_run();
  member.run = member.post->lead.enter_user_code();
  // The pulse watches how long the user code takes.
  if (rare) {
    pulse_.touch_briefly();
  } else {
    pulse_.touch();
  }
}

bool Crew::still_leads() const {
  auto* member = static_cast<Member*>(this_member);
  return member && member->post && member->post->lead.is_in(member->run);
}

bool Crew::leave_user_code() {
  Member& member = me();
  if (member.post->lead.leave_user_code(member.run)) return true;
  member.leading = false;
  member.slot.give();
  return false;
}

void Crew::give_up_lead() {
  Member& member = me();
  take_lead_from(*member.post, member.run);
}

bool Crew::take_lead_from(Post& post, Lead::Run run) {
  if (!post.lead.take_away(run)) return false;
  assign({Duty::Kind::kLead, &post});
  return true;
}

// --- slots and the backlog -------------------------------------------------------------------

bool Crew::take_slot() { return me().slot.take(); }
void Crew::give_slot() { me().slot.give(); }

bool Crew::work_is_possible() const {
  return backlog_ && backlog_->waiting() > 0 && slots_.has_free();
}

void Crew::call_for_help() {
  if (slots_.has_free() && search_.call_first()) assign({Duty::Kind::kHelp, nullptr});
}

void Crew::on_task_added() {
  call_for_help();
  pulse_.touch();  // after the task is there: the pulse must not fall asleep over it
}

void Crew::found_work() {
  Member& member = me();
  member.begin_run();
  taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (member.searcher.end() && work_is_possible()) call_for_help();
}

// `was_called`: counted as searching already.
void Crew::help(Member& member, bool was_called) {
  if (!backlog_) return;
  if (was_called) {
    member.searcher.begin_called();
  } else {
    member.searcher.begin();
  }
  Spinner spinner;
  spinner.begin(limits_.spin);
  // A loop that nobody leads comes first: stand_by() takes it.
  while (!stopping() && unassigned_leads_.load(std::memory_order_relaxed) == 0) {
    if (backlog_->waiting() > 0 && member.slot.take()) {
      const bool ran = backlog_->run_one();
      member.slot.give();
      if (ran) {
        member.searcher.begin();
        spinner.begin(limits_.spin);
        continue;
      }
    }
    if (spinner.again()) continue;
    member.searcher.end();
    if (!work_is_possible()) return;
    member.searcher.begin();
  }
  member.searcher.end();
}

// --- the pulse -------------------------------------------------------------------------------

void Crew::on_tick() {
  for (auto& post : posts_) {
    const std::optional<Lead::Run> slow = post->lead.lasting_run();
    if (slow && take_lead_from(*post, *slow)) post->loop.on_slow_user_code();
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
  const size_t searching = search_.searching();
  const size_t possible = used < limits_.running ? limits_.running - used : 0;
  const size_t wanted = std::min(possible, backlog_->waiting());
  for (size_t i = searching; i < wanted; ++i) {
    search_.call_another();
    assign({Duty::Kind::kHelp, nullptr});
    if (no_more_threads_.load(std::memory_order_relaxed)) break;  // until the next tick
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
    if (member.slot.state() == Slot::State::kBlocked && ++blocked > kBlockedPerTick) continue;
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
      no_more_threads_.store(false, std::memory_order_relaxed);
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
  if (duty.kind == Duty::Kind::kHelp) search_.call_failed();
  if (duty.kind != Duty::Kind::kLead) return;
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(duty.post->unassigned, true))
      unassigned_leads_.fetch_add(1, std::memory_order_relaxed);
  }
  pulse_.touch();
}

std::vector<Crew::Duty> Crew::take_all_unassigned() {
  std::vector<Duty> all;
  if (unassigned_leads_.load(std::memory_order_relaxed) == 0) return all;
  all.reserve(posts_.size());  // before a lead is taken that could be lost
  const MutexLock lock(mutex_);
  for (Duty lead = take_unassigned(); lead.kind != Duty::Kind::kNone; lead = take_unassigned())
    all.push_back(lead);
  return all;
}

Crew::Duty Crew::take_unassigned() {
  for (auto& post : posts_) {
    if (!std::exchange(post->unassigned, false)) continue;
    unassigned_leads_.fetch_sub(1, std::memory_order_relaxed);
    return {Duty::Kind::kLead, post.get()};
  }
  return {};
}

bool Crew::spawn(Duty duty) {
  alive_.fetch_add(1, std::memory_order_relaxed);
  try {
    make_room_for_threads();
    std::thread([self = shared_from_this(), keepalive = keepalive_.lock(), duty] {
      self->thread_main(duty);
    }).detach();
    no_more_threads_.store(false, std::memory_order_relaxed);
    return true;
  } catch (const std::exception& error) {
    {
      const MutexLock lock(mutex_);
      count_end();
    }
    if (!no_more_threads_.exchange(true, std::memory_order_relaxed))
      log(LogLevel::kError, name_, "cannot start a thread: {}", error.what());
    note_unassigned(duty);
    if (duty.kind == Duty::Kind::kHelp) wake_leaders();
    return false;
  }
}

// A new thread needs no memory to enter itself: it could tell nobody that there is none.
void Crew::make_room_for_threads() {
  const MutexLock lock(mutex_);
  make_room(members_, threads());
  make_room(idle_, threads());
}

// So that they take tasks from the backlog themselves.
void Crew::wake_leaders() {
  for (auto& post : posts_) post->loop.interrupt();
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
    member.post = duty.post;
    member.leading = true;
    duty.post->lead.take();
    duty.post->loop.lead();
    member.leading = false;
    member.slot.give();
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
  wake_leaders();
  MutexLock lock(mutex_);
  return all_gone_.wait_for(lock.for_waiting(), patience,
                            [this] { return alive_.load(std::memory_order_relaxed) == 0; });
}

}  // namespace weft::base
