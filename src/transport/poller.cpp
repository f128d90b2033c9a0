// SPDX-License-Identifier: BSD-3-Clause
#include "transport/poller.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/room.h"
#include "weft/error.h"

namespace weft::transport {

namespace {

// Rounded up: waking early would only make the caller wait again.
int to_milliseconds(std::optional<base::Duration> limit) {
  if (!limit) return -1;
  if (limit->count() <= 0) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*limit).count();
  return static_cast<int>(std::min<int64_t>(ms, 1 << 30));
}

PrivateDescriptor checked(int fd, const char* what) {
  if (fd >= 0) return PrivateDescriptor(fd);
  throw Error(ErrorCode::kLimitExceeded,
              fmt::format("cannot create {}: {}", what, strerror(errno)));
}

uint32_t epoll_bits(uint32_t interest) {
  uint32_t bits = 0;
  if (interest & kReadable) bits |= EPOLLIN | EPOLLRDHUP;
  if (interest & kWritable) bits |= EPOLLOUT;
  return bits;
}

// For a source that the system does not watch. Each sign is reported once (EPOLLET), so that it
// need not be read before the next one.
uint32_t bits_of_signs(uint32_t interest) {
  return EPOLLET | (interest == kNothing ? uint32_t{0} : EPOLLIN | EPOLLRDHUP);
}

bool has_hung_up(uint32_t bits) { return (bits & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0; }

}  // namespace

Poller::Poller()
    : epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor")),
      wake_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an event descriptor")) {
  epoll_event event{EPOLLIN, {.u64 = kWakeToken}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

// --- sources ---------------------------------------------------------------------------------

bool Poller::add(EventSource& source, uint32_t interest, uint64_t token) {
  const bool by_system = source.is_watched_by_system();
  epoll_event event{by_system ? epoll_bits(interest) : bits_of_signs(interest), {.u64 = token}};
  if (!by_system) event.data.u64 = enter(source, token);  // before a sign can come
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source.descriptor(), &event) != 0) {
    forget(source, token);
    return false;
  }
  if (!by_system) watch(source, interest, token);
  return true;
}

void Poller::change(EventSource& source, uint32_t interest, uint64_t token) {
  const bool by_system = source.is_watched_by_system();
  epoll_event event{by_system ? epoll_bits(interest) : bits_of_signs(interest), {.u64 = token}};
  if (!by_system) {
    const std::optional<uint64_t> tag = tag_of(source, token);
    if (!tag) return;  // removed
    event.data.u64 = *tag;
  }
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, source.descriptor(), &event) != 0) return;  // removed
  if (!by_system) watch(source, interest, token);
}

std::optional<uint64_t> Poller::tag_of(const EventSource& source, uint64_t token) const {
  const base::MutexLock lock(mutex_);
  const auto found = watched_.find(token);
  const bool is_entered = found != watched_.end() && found->second.source == &source;
  return is_entered ? std::optional(found->second.tag) : std::nullopt;
}

void Poller::remove(EventSource& source, uint64_t token) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.descriptor(), nullptr);
  forget(source, token);
}

void Poller::forget(EventSource& source, uint64_t token) {
  if (source.is_watched_by_system()) return;
  const base::MutexLock lock(mutex_);
  const auto found = watched_.find(token);
  if (found == watched_.end() || found->second.source != &source) return;
  if (found->second.awake) std::erase(awake_, token);
  watched_.erase(found);
  awake_count_.store(awake_.size(), std::memory_order_seq_cst);
}

// Returns the tag of the source, which the table then has. Throws std::bad_alloc.
uint64_t Poller::enter(EventSource& source, uint64_t token) {
  const base::MutexLock lock(mutex_);
  auto found = watched_.find(token);
  if (found == watched_.end()) {
    base::make_room(awake_, watched_.size() + 1);
    base::make_room(still_, watched_.size() + 1);
    found = watched_.try_emplace(token, Watched{nullptr, kNothing, token, false, 0}).first;
  }
  Watched& watched = found->second;
  if (watched.source != &source) {
    watched.source = &source;
    // Above the token stands neither zero, as above that of a descriptor, nor all ones.
    watched.tag = token | (1 + next_tag_++ % kTags) << kTokenBits;
  }
  return watched.tag;
}

void Poller::watch(EventSource& source, uint32_t interest, uint64_t token) {
  bool is_ready;
  {
    const base::MutexLock lock(mutex_);
    const auto found = watched_.find(token);
    if (found == watched_.end()) return;  // removed
    Watched& watched = found->second;
    watched.interest = interest;
    if (watched.awake) return;  // the thread that waits looks at it before it sleeps
    is_ready = source.arm(interest).any();
    if (is_ready) note_awake(watched);
  }
  if (is_ready) wake();
}

void Poller::note_awake(Watched& watched) {
  if (std::exchange(watched.awake, true)) return;
  awake_.push_back(watched.token);
  awake_count_.store(awake_.size(), std::memory_order_seq_cst);
}

void Poller::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

// --- waiting ---------------------------------------------------------------------------------

std::span<const PollEvent> Poller::wait(std::optional<base::Duration> limit) {
  const bool sleeps = !limit || limit->count() > 0;
  // Sources that the system does not watch may give a sign and have nothing.
  const base::Time until =
      sleeps && limit ? base::later(std::chrono::steady_clock::now(), *limit) : base::Time::max();
  for (;;) {
    size_t count = has_awake() ? look_at_awake(/*arms=*/sleeps) : 0;
    if (count > 0 && ++calls_ % kCallsPerLook != 0) return {events_.data(), count};
    bool woken = false;
    const int n = epoll_wait(epoll_.get(), raw_.data(), kBatch,
                             to_milliseconds(count > 0 ? base::Duration(0) : limit));
    for (int i = 0; i < n; ++i) {
      if (raw_[i].data.u64 == kWakeToken) {
        take_wake();
        woken = true;
      } else if (const auto event = event_of(raw_[i])) {
        events_[count++] = *event;
      }
    }
    if (count > 0 || woken || n <= 0 || !sleeps) return {events_.data(), count};
    if (limit) limit = until - std::chrono::steady_clock::now();
    if (limit && limit->count() <= 0) return {};
  }
}

std::span<const PollEvent> Poller::look() {
  return {events_.data(), has_awake() ? look_at_awake(/*arms=*/false) : 0};
}

void Poller::take_wake() {
  uint64_t ignored;
  [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &ignored, sizeof ignored);
}

// Puts the events of awake sources into events_ and returns how many there are, at most kBatch.
// `arms`: a source that has none falls asleep.
size_t Poller::look_at_awake(bool arms) {
  size_t found = 0;
  size_t looked_at = 0;
  const base::MutexLock lock(mutex_);
  still_.clear();
  for (const uint64_t token : awake_) {
    if (found == kBatch) break;
    ++looked_at;
    Watched& each = watched_.at(token);
    const Readiness ready =
        arms ? each.source->arm(each.interest) : each.source->look(each.interest);
    if (ready.any()) events_[found++] = {token, ready.readable, ready.writable};
    each.awake = ready.any() || !arms;
    if (each.awake) still_.push_back(token);
  }
  // Those that were not looked at come first the next time.
  awake_.erase(awake_.begin(), awake_.begin() + static_cast<ptrdiff_t>(looked_at));
  awake_.insert(awake_.end(), still_.begin(), still_.end());
  awake_count_.store(awake_.size(), std::memory_order_seq_cst);
  return found;
}

// Nothing: a source has given a sign but has nothing of interest, or look_at_awake() has found it.
std::optional<PollEvent> Poller::event_of(const epoll_event& raw) {
  if (raw.data.u64 <= kTokenMask) return event_of_descriptor(raw);
  const base::MutexLock lock(mutex_);
  const auto found = watched_.find(raw.data.u64 & kTokenMask);
  if (found == watched_.end() || found->second.tag != raw.data.u64) return std::nullopt;
  Watched& watched = found->second;
  const bool hung_up = has_hung_up(raw.events);
  watched.source->take_sign(hung_up);
  // As the system does: the end is told also if nothing is of interest.
  if (hung_up && watched.interest == kNothing) return PollEvent{watched.token, true, true};
  if (watched.awake) return std::nullopt;
  note_awake(watched);
  const Readiness ready = watched.source->look(watched.interest);
  if (!ready.any()) return std::nullopt;
  return PollEvent{watched.token, ready.readable, ready.writable};
}

PollEvent Poller::event_of_descriptor(const epoll_event& raw) {
  const uint32_t bits = raw.events;
  return {raw.data.u64, (bits & EPOLLIN) != 0 || has_hung_up(bits),
          (bits & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0};
}

bool Poller::has_events() const {
  if (has_awake()) {
    const base::MutexLock lock(mutex_);
    for (const uint64_t token : awake_) {
      const Watched& each = watched_.at(token);
      if (each.source->look(each.interest).any()) return true;
    }
  }
  pollfd polled{epoll_.get(), POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace weft::transport
