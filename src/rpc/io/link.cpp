// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/link.h"

#include <new>
#include <utility>

#include "arena/arena_carrier.h"
#include "arena/foreign_arena.h"

namespace weft::rpc {

using transport::IoResult;

namespace {
constexpr int kParts = 64;
}

wire::Features Link::offered_features() {
  return arena::ForeignArena::can_be_mapped() ? wire::kOfferedFeatures : wire::Features();
}

void Link::agree_on(wire::Features theirs) {
  const wire::Features features = offered_features().common_with(theirs);
  features_.store(features);
  if (!features.has(wire::Feature::kSharedArena)) return;
  own_carrier_ = arena::make_arena_carrier(*connection_);
  decoder_.use_carrier(own_carrier_.get());
  carrier_.store(own_carrier_.get(), std::memory_order_release);
}

void Link::stage_tensors(Encoder& value, Originals originals) {
  wire::Carrier* carrier = carrier_.load(std::memory_order_acquire);
  if (!carrier) return;
  for (Encoder::OutgoingTensor& tensor : value.tensors()) {
    carrier->stage(tensor);
    if (originals == Originals::kDropped) tensor.original = at::Tensor();
  }
}

// Before open() nothing is urgent: all frames wait for the hello.
template <typename Add>
Link::Position Link::queue_with(Lane which, const Add& add) {
  const base::MutexLock lock(mutex_);
  const bool urgent = open_ && which == Lane::kUrgent;
  Queue& its = urgent ? urgent_queue_ : normal_queue_;
  wire::Outbox& into = open_ ? its.frames : held_;
  const size_t before = into.bytes();
  try {
    add(into);
  } catch (...) {  // a part of the frame may be queued, so nothing may be sent any more
    if (why_broken_.empty()) why_broken_ = "there is no memory for a frame";
    throw;
  }
  const size_t added = into.bytes() - before;
  queued_bytes_.fetch_add(added, std::memory_order_relaxed);
  if (urgent) urgent_waits_.store(true, std::memory_order_relaxed);
  return {urgent, its.end += added};
}

Link::Position Link::queue(const wire::FrameHeader& header, std::span<const std::byte> prelude,
                           const Encoder& value, Lane lane) {
  return queue_with(lane, [&](wire::Outbox& into) {
    into.add(header, prelude, value, wire::LargeFrames::kInPieces,
             carrier_.load(std::memory_order_acquire));
  });
}

Link::Position Link::queue(const wire::FrameHeader& header, std::span<const std::byte> body,
                           Lane lane) {
  return queue_with(lane, [&](wire::Outbox& into) { into.add(header, body); });
}

void Link::queue_first(const wire::FrameHeader& header, const Encoder& value) {
  const base::MutexLock lock(mutex_);
  open_ = false;
  wire::Outbox& first = normal_queue_.frames;
  first.add(header, {}, value);
  queued_bytes_.fetch_add(first.bytes(), std::memory_order_relaxed);
  normal_queue_.end += first.bytes();
}

void Link::open() {
  const base::MutexLock lock(mutex_);
  open_ = true;
  // Nothing can be queued behind the first frames before now, so this keeps the order.
  wire::Outbox& queued = normal_queue_.frames;
  if (queued.empty()) {
    std::swap(queued, held_);
  } else {
    normal_.writing = std::move(queued);
    queued = std::move(held_);
  }
  held_.clear();
}

Link::State Link::flush(size_t too_much) {
  const base::MutexLock lock(mutex_);
  deferred_.store(false, std::memory_order_relaxed);
  if (!why_broken_.empty()) return State::kBroken;
  if (writing_) return State::kFine;
  writing_ = true;
  State state = take_queued(too_much) ? write_out() : State::kFine;
  // What other threads have queued meanwhile.
  if (state == State::kFine && has_frames()) {
    const uint64_t enough = sent_bytes() + kMostPerFlush;
    while (state == State::kFine && sent_bytes() < enough && take_queued(too_much))
      state = write_out();
    // Too much for this thread: another one goes on when the connection is writable, which it is.
    if (state == State::kFine && has_frames()) state = State::kBlocked;
  }
  blocked_.store(state == State::kBlocked, std::memory_order_relaxed);
  writing_ = false;
  return state;
}

// Queued frames become the writing thread's. False: there is nothing to write.
bool Link::take_queued(size_t too_much) {
  if (!why_broken_.empty()) return false;
  wire::Outbox& normal = normal_queue_.frames;
  wire::Outbox& urgent = urgent_queue_.frames;
  if (urgent_waits_.load(std::memory_order_relaxed) && urgent_.writing.empty()) {
    urgent_.writing.take_all(urgent);
    urgent_waits_.store(false, std::memory_order_relaxed);
  }
  if (normal_.writing.empty() && !normal.empty() && normal.bytes() < too_much)
    normal_.writing.take_all(normal);
  return !normal_.writing.empty() || !urgent_.writing.empty();
}

// Called and returns with the lock held; writes without it, until there is nothing more to write or
// urgent frames can be taken.
Link::State Link::write_out() {
  State state = State::kFine;
  std::string why;
  {
    const base::Unlocked unlocked(mutex_);
    try {
      while (LaneState* from = next_to_write()) {
        IoResult sent = write_once(*from);
        if (sent.status == IoResult::Status::kDone) continue;
        state = sent.status == IoResult::Status::kClosed ? State::kBroken : State::kBlocked;
        why = std::move(sent.why);
        break;
      }
    } catch (const std::bad_alloc&) {  // for the reason of a failure, say
      state = State::kBroken;
      why = "no memory";
    }
    for (LaneState* each : {&normal_, &urgent_}) {
      if (each->is_offering()) each->offered_bytes.store(each->sent(), std::memory_order_seq_cst);
    }
  }
  if (state == State::kBroken && why_broken_.empty()) why_broken_ = std::move(why);
  return state;
}

// For the writing thread: the lane to write from. Null: there is nothing to write, or urgent frames
// are to be taken first.
Link::LaneState* Link::next_to_write() {
  const bool urgent_waits = urgent_waits_.load(std::memory_order_relaxed);
  if (!urgent_waits && urgent_.writing.empty()) return normal_.writing.empty() ? nullptr : &normal_;
  const bool at_cut = normal_.writing.at_cut();
  if (!urgent_.writing.empty() && at_cut) return &urgent_;
  if (urgent_waits && urgent_.writing.empty() && at_cut) return nullptr;
  return normal_.writing.empty() ? nullptr : &normal_;
}

IoResult Link::write_once(LaneState& from) {
  using Extent = wire::Outbox::Extent;
  const bool others_wait = &from == &normal_ && (!urgent_.writing.empty() ||
                                                 urgent_waits_.load(std::memory_order_relaxed));
  iovec parts[kParts];
  const int count =
      from.writing.gather(parts, kParts, others_wait ? Extent::kToNextCut : Extent::kAll);
  from.offered_bytes.store(from.sent() + from.writing.bytes(), std::memory_order_seq_cst);
  IoResult sent = connection_->send(parts, count);
  if (sent.status == IoResult::Status::kDone) {
    from.writing.consume(sent.bytes);
    queued_bytes_.fetch_sub(sent.bytes, std::memory_order_relaxed);
    from.sent_bytes.fetch_add(sent.bytes, std::memory_order_release);
  }
  return sent;
}

Link::State Link::receive() {
  return receive_with(
      [this](std::span<std::byte> into) { return connection_->receive(into.data(), into.size()); });
}

Link::State Link::wait_and_receive() {
  return receive_with([this](std::span<std::byte> into) {
    return connection_->wait_and_receive(into.data(), into.size());
  });
}

template <typename F>
Link::State Link::receive_with(const F& read) {
  try {
    return took(read(decoder_.prepare()));
  } catch (const std::bad_alloc&) {
    note_broken("there is no memory for the message that is arriving");
    return State::kBroken;
  }
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
      note_broken(got.why);
      return State::kBroken;
  }
  return State::kBroken;
}

// Needs no memory unless the reason is long.
void Link::note_broken(std::string_view why) {
  const base::MutexLock lock(mutex_);
  if (why_broken_.empty()) why_broken_ = why.empty() ? "closed" : why;
}

bool Link::broken() const {
  const base::MutexLock lock(mutex_);
  return !why_broken_.empty();
}

std::string Link::why_broken() const {
  const base::MutexLock lock(mutex_);
  return why_broken_.empty() ? "closed" : why_broken_;
}

}  // namespace weft::rpc
