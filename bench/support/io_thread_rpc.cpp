// SPDX-License-Identifier: BSD-3-Clause
#include "support/io_thread_rpc.h"

#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "support/system_error.h"

namespace bench {
namespace {

constexpr size_t kBufferSize = 64 * 1024;

// Calls on_frames(frames, count) with every batch that arrives, until the peer closes.
template <typename OnFrames>
void for_each_batch(const Socket& socket, OnFrames&& on_frames) {
  const Socket epoll(check_system(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  epoll_event event{};
  event.events = EPOLLIN;
  check_system(epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, socket.fd(), &event), "epoll_ctl");
  std::vector<IoThreadFrame> frames(kBufferSize / sizeof(IoThreadFrame));
  char* const buffer = reinterpret_cast<char*>(frames.data());
  const size_t room = frames.size() * sizeof(IoThreadFrame);
  size_t filled = 0;
  for (;;) {
    if (epoll_wait(epoll.fd(), &event, 1, -1) < 0 && errno != EINTR) check_system(-1, "epoll_wait");
    const ssize_t got = recv(socket.fd(), buffer + filled, room - filled, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    check_system(got, "recv");
    if (got == 0) return;
    filled += static_cast<size_t>(got);
    const size_t whole = filled / sizeof(IoThreadFrame);
    on_frames(frames.data(), whole);
    filled -= whole * sizeof(IoThreadFrame);
    std::memmove(buffer, buffer + whole * sizeof(IoThreadFrame), filled);
  }
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

IoThreadClient::IoThreadClient(Socket socket, size_t slots)
    : socket_(std::move(socket)), slots_(slots), io_thread_([this] { receive_replies(); }) {}

IoThreadClient::~IoThreadClient() {
  shutdown(socket_.fd(), SHUT_RDWR);
  io_thread_.join();
}

void IoThreadClient::call(size_t slot) {
  std::atomic<uint32_t>& state = slots_[slot].state;
  state.store(kPending, std::memory_order_relaxed);
  write({slot, {}});
  uint32_t expected = kPending;
  if (!state.compare_exchange_strong(expected, kSleeping)) return;
  while (state.load(std::memory_order_acquire) == kSleeping)
    futex(state, FUTEX_WAIT_PRIVATE, kSleeping);
}

void IoThreadClient::write(const IoThreadFrame& frame) {
  std::unique_lock lock(mutex_);
  queued_.push_back(frame);
  if (writing_) return;
  writing_ = true;
  while (!queued_.empty()) {
    on_wire_.swap(queued_);
    lock.unlock();
    send_all(socket_, on_wire_.data(), on_wire_.size() * sizeof(IoThreadFrame));
    on_wire_.clear();
    lock.lock();
  }
  writing_ = false;
}

void IoThreadClient::receive_replies() {
  for_each_batch(socket_, [this](const IoThreadFrame* frames, size_t count) {
    for (size_t i = 0; i < count; ++i) complete(slots_.at(frames[i].slot));
  });
}

void IoThreadClient::complete(Slot& slot) {
  if (slot.state.exchange(kDone, std::memory_order_acq_rel) == kSleeping)
    futex(slot.state, FUTEX_WAKE_PRIVATE, 1);
}

void serve_io_thread_client(const Socket& socket) {
  for_each_batch(socket, [&](const IoThreadFrame* frames, size_t count) {
    if (count > 0) send_all(socket, frames, count * sizeof(IoThreadFrame));
  });
}

}  // namespace bench
