// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/link.h"

#include <utility>

namespace weft::rpc {

using transport::IoResult;

namespace {
constexpr int kPieces = 64;
}

uint64_t Link::queue(const wire::FrameHeader& header, std::span<const std::byte> prelude,
                     const Encoder& value) {
  std::lock_guard lock(mutex_);
  wire::Outbox& into = open_ ? queued_ : held_;
  const size_t before = into.bytes();
  into.add(header, prelude, value);
  const size_t added = into.bytes() - before;
  queued_bytes_.fetch_add(added, std::memory_order_relaxed);
  return stream_end_ += added;
}

uint64_t Link::queue(const wire::FrameHeader& header, std::span<const std::byte> body) {
  std::lock_guard lock(mutex_);
  wire::Outbox& into = open_ ? queued_ : held_;
  const size_t before = into.bytes();
  into.add(header, body);
  const size_t added = into.bytes() - before;
  queued_bytes_.fetch_add(added, std::memory_order_relaxed);
  return stream_end_ += added;
}

void Link::queue_first(const wire::FrameHeader& header, const Encoder& value) {
  std::lock_guard lock(mutex_);
  open_ = false;
  queued_.add(header, {}, value);
  queued_bytes_.fetch_add(queued_.bytes(), std::memory_order_relaxed);
  stream_end_ += queued_.bytes();
}

void Link::open() {
  std::lock_guard lock(mutex_);
  open_ = true;
  // Nothing can be queued behind the first frames before now, so this keeps the order.
  if (queued_.empty()) {
    std::swap(queued_, held_);
  } else {
    writing_out_ = std::move(queued_);
    queued_ = std::move(held_);
  }
  held_.clear();
}

Link::State Link::flush(size_t too_much) {
  std::unique_lock lock(mutex_);
  left_.store(false, std::memory_order_relaxed);
  if (!why_broken_.empty()) return State::kBroken;
  if (writing_) return State::kFine;
  writing_ = true;
  State state = State::kFine;
  while (state == State::kFine) {
    if (writing_out_.empty()) {
      if (queued_.empty()) break;
      if (queued_.bytes() >= too_much) {
        state = State::kBlocked;
        break;
      }
      std::swap(writing_out_, queued_);
    }
    state = write_out(lock);
  }
  blocked_.store(state == State::kBlocked, std::memory_order_relaxed);
  writing_ = false;
  return state;
}

// Called and returns with the lock held; writes without it.
Link::State Link::write_out(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  State state = State::kFine;
  std::string why;
  while (!writing_out_.empty()) {
    iovec pieces[kPieces];
    const int count = writing_out_.gather(pieces, kPieces);
    offered_bytes_.store(sent_bytes() + writing_out_.bytes(), std::memory_order_seq_cst);
    IoResult sent = connection_->send(pieces, count);
    if (sent.status == IoResult::Status::kDone) {
      writing_out_.consume(sent.bytes);
      queued_bytes_.fetch_sub(sent.bytes, std::memory_order_relaxed);
      sent_bytes_.fetch_add(sent.bytes, std::memory_order_release);
      continue;
    }
    state = sent.status == IoResult::Status::kClosed ? State::kBroken : State::kBlocked;
    why = std::move(sent.why);
    break;
  }
  offered_bytes_.store(sent_bytes(), std::memory_order_seq_cst);
  lock.lock();
  if (state == State::kBroken && why_broken_.empty()) why_broken_ = std::move(why);
  return state;
}

Link::State Link::receive() {
  const std::span<std::byte> into = decoder_.prepare();
  return took(connection_->receive(into.data(), into.size()));
}

Link::State Link::wait_and_receive() {
  const std::span<std::byte> into = decoder_.prepare();
  return took(connection_->wait_and_receive(into.data(), into.size()));
}

Link::State Link::took(IoResult got) {
  switch (got.status) {
    case IoResult::Status::kDone:
      decoder_.commit(got.bytes);
      received_bytes_.store(received_bytes_.load(std::memory_order_relaxed) + got.bytes,
                            std::memory_order_relaxed);
      return State::kFine;
    case IoResult::Status::kWouldBlock:
      return State::kBlocked;
    case IoResult::Status::kClosed:
      note_broken(std::move(got.why));
      return State::kBroken;
  }
  return State::kBroken;
}

void Link::note_broken(std::string why) {
  std::lock_guard lock(mutex_);
  if (why_broken_.empty()) why_broken_ = why.empty() ? "closed" : std::move(why);
}

bool Link::broken() const {
  std::lock_guard lock(mutex_);
  return !why_broken_.empty();
}

std::string Link::why_broken() const {
  std::lock_guard lock(mutex_);
  return why_broken_.empty() ? "closed" : why_broken_;
}

}  // namespace weft::rpc
