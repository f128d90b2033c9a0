// SPDX-License-Identifier: BSD-3-Clause
#include "transport/poller.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

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

}  // namespace

Poller::Poller()
    : epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor")),
      wake_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an event descriptor")) {
  add(wake_.get(), EPOLLIN, kWakeToken);
}

bool Poller::add(int descriptor, uint32_t interest, uint64_t token) {
  epoll_event event{interest, {.u64 = token}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void Poller::change(int descriptor, uint32_t interest, uint64_t token) {
  epoll_event event{interest, {.u64 = token}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event);
}

void Poller::remove(int descriptor) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr); }

void Poller::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

std::span<const PollEvent> Poller::wait(std::optional<base::Duration> limit) {
  const int n = epoll_wait(epoll_.get(), raw_.data(), kBatch, to_milliseconds(limit));
  size_t count = 0;
  for (int i = 0; i < n; ++i) {
    if (raw_[i].data.u64 == kWakeToken) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t read_bytes = read(wake_.get(), &ignored, sizeof ignored);
      continue;
    }
    const uint32_t bits = raw_[i].events;
    events_[count++] = {raw_[i].data.u64,
                        (bits & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0,
                        (bits & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0};
  }
  return {events_.data(), count};
}

bool Poller::has_events() const {
  return wait_for_descriptor(epoll_.get(), WaitFor::kReadable, base::Duration(0)).readable;
}

Readiness wait_for_descriptor(int descriptor, WaitFor what, std::optional<base::Duration> limit) {
  pollfd polled{descriptor, POLLIN | POLLRDHUP, 0};
  if (what == WaitFor::kReadableOrWritable) polled.events |= POLLOUT;
  timespec at_most{};
  if (limit && limit->count() > 0) {
    at_most.tv_sec = limit->count() / 1'000'000'000;
    at_most.tv_nsec = limit->count() % 1'000'000'000;
  }
  if (ppoll(&polled, 1, limit ? &at_most : nullptr, nullptr) <= 0) return {};
  const bool over = polled.revents & (POLLHUP | POLLERR | POLLNVAL);
  const bool hung_up = over || polled.revents & POLLRDHUP;
  return {hung_up || polled.revents & POLLIN, over || polled.revents & POLLOUT, hung_up};
}

}  // namespace weft::transport
