// SPDX-License-Identifier: BSD-3-Clause
#include "transport/event_source.h"

#include <poll.h>

#include <ctime>

namespace weft::transport {

Readiness EventSource::wait(uint32_t interest, std::optional<base::Duration> limit) {
  pollfd polled{descriptor(), 0, 0};
  if (interest & kReadable) polled.events |= POLLIN | POLLRDHUP;
  if (interest & kWritable) polled.events |= POLLOUT;
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
