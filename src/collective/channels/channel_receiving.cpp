// Channel: chunks and questions of the other members.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "collective/channels/channel.h"
#include "collective/channels/operation.h"

namespace weft::collective {

namespace {

// So many chunks are kept for operations that have not begun here.
constexpr size_t kMostEarlyChunks = 4096;
// So many bytes take about a millisecond to copy. More are left to another thread: the one that
// brings them has other connections to serve.
constexpr size_t kUsedByWhoBringsIt = 4 << 20;

size_t received_bytes(const Tensors& tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_sparse()) bytes += tensor.nbytes();
  }
  return bytes;
}

}  // namespace

void Channel::on_chunk(int from, Chunk chunk) {
  std::optional<Error> wrong;
  Errand errand;
  const bool departs = chunk.number >= kDepartures;
  {
    const Lock lock(mutex_);
    if (failure_) return;
    wrong = take_in(from, chunk, errand);
  }
  if (wrong) return fail_and_tell(*wrong);
  run(errand, from, std::move(chunk));
  if (departs) on_departed();
}

void Channel::run(const Errand& errand, int from, Chunk chunk) {
  switch (errand.kind) {
    case Errand::Kind::kNone:
      return;
    case Errand::Kind::kAdvance:
      return advance(errand.operation);
    case Errand::Kind::kAdvanceLater:
      return post_advance(errand.operation);
    case Errand::Kind::kUse:
      break;
  }
  if (received_bytes(chunk.tensors) <= kUsedByWhoBringsIt)
    return use(errand.operation, from, chunk);
  std::shared_ptr<Chunk> large;
  try {
    large = std::make_shared<Chunk>(std::move(chunk));
    outside_->later([self = shared_from_this(), operation = errand.operation, from, large] {
      self->use(operation, from, *large);
    });
  } catch (const std::bad_alloc&) {
    use(errand.operation, from, large ? *large : chunk);
  }
}

// Sets `errand` to what the caller is to do.
std::optional<Error> Channel::take_in(int from, Chunk& chunk, Errand& errand) {
  if (const auto wrong = impossible(from, chunk)) return wrong;
  if (chunk.number >= kDepartures && chunk.epoch >= epoch_) {
    departed_[chunk.epoch].emplace(from, chunk.signature.elements);
  }
  if (const auto found = operations_.find(chunk.number); found != operations_.end()) {
    const OperationRef operation = found->second;
    if (const auto wrong = disagreement(*operation, from, chunk)) return wrong;
    errand = take_into(operation, from, chunk);
    return {};
  }
  if (is_to_come(chunk)) {
    if (early_chunks_ >= kMostEarlyChunks) {
      return Error(
          ErrorCode::kLimitExceeded,
          fmt::format("{}: {} is too far ahead of {}: {} chunks wait there for operations it has "
                      "not begun",
                      outside_->group_name(), outside_->name(from), outside_->name(rank_),
                      kMostEarlyChunks));
    }
    ++early_chunks_;
    const uint64_t number = chunk.number;
    early_[number].push_back({from, std::move(chunk)});
    return {};
  }
  const auto& [number, signature] = finished_[chunk.number % finished_.size()];
  if (number != chunk.number || signature == chunk.signature) return {};
  return disagreement(number, signature, from, chunk.signature);
}

// A chunk that came before, also if it was used already, is dropped.
Channel::Errand Channel::take_into(const OperationRef& operation, int from, Chunk& chunk) {
  if (!is_new(*operation, from, chunk)) return {};
  if (operation->algorithm->uses_at_once(chunk.phase)) {
    keep(*operation, from, {}, chunk.phase);
    ++operation->using_chunks[chunk.phase];
    return {Errand::Kind::kUse, operation};
  }
  keep(*operation, from, std::move(chunk.tensors), chunk.phase);
  if (operation->advancing || !can_go_on(*operation)) return {};
  return operation->heavy ? advance_later(operation) : Errand{Errand::Kind::kAdvance, operation};
}

void Channel::use(const OperationRef& operation, int from, const Chunk& chunk) {
  const size_t place = place_of(*operation, from);
  try {
    attempt(*operation, [&] { operation->algorithm->use(chunk.phase, place, chunk.tensors); });
  } catch (...) {  // no memory even to say so: as if the chunk had not come
    {
      const Lock lock(mutex_);
      --operation->using_chunks[chunk.phase];
      operation->arrived[chunk.phase][place].reset();
    }
    advance(operation);  // which ends it if the channel has failed
    throw;
  }
  Errand errand{Errand::Kind::kAdvance, operation};
  {
    const Lock lock(mutex_);
    --operation->using_chunks[chunk.phase];
    if (operation->advancing || (!failure_ && !can_go_on(*operation))) return;
    const bool is_last = operation->phase + 1 >= operation->algorithm->phases();
    if (!failure_ && !is_last) errand = advance_later(operation);
  }
  run(errand, from, {});
}

// An error if no correct member sends such a chunk. A member that has seen all depart can be one
// epoch ahead of this one, but not two.
std::optional<Error> Channel::impossible(int from, const Chunk& chunk) const {
  const bool departs = chunk.number >= kDepartures;
  const bool is_departure = chunk.signature.kind == static_cast<uint8_t>(Kind::kDeparture);
  if (from >= 0 && from < size_ && from != rank_ && chunk.epoch <= epoch_ + 1 &&
      departs == is_departure &&
      (!departs ||
       (chunk.number == kDepartures + chunk.epoch && chunk.signature.elements < kDepartures))) {
    return {};
  }
  return Error(ErrorCode::kBadMessage,
               fmt::format("{}: {} sends chunk {} of operation {}, {}, in epoch {} to {}, which is "
                           "in epoch {}",
                           outside_->group_name(), from, chunk.phase, chunk.number,
                           describe(chunk.signature), chunk.epoch, rank_, epoch_));
}

// Whether this member will take part in the chunk's operation but has not begun it.
bool Channel::is_to_come(const Chunk& chunk) const {
  if (chunk.epoch != epoch_) return chunk.epoch > epoch_;
  if (chunk.number >= kDepartures) return true;
  return chunk.number >= next_ && !has_left();
}

size_t Channel::place_of(const Operation& operation, int rank) {
  const auto& ranks = operation.ranks;
  return static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

bool Channel::is_new(const Operation& operation, int from, const Chunk& chunk) {
  return chunk.phase >= operation.phase &&
         !operation.arrived[chunk.phase][place_of(operation, from)];
}

void Channel::keep(Operation& operation, int from, Tensors tensors, uint8_t phase) {
  operation.arrived[phase][place_of(operation, from)] = std::move(tensors);
}

Error Channel::too_early(const Operation& operation, int from, const Chunk& chunk) const {
  return Error(ErrorCode::kBadMessage,
               fmt::format("{}: {} sends chunk {}, which answers what {} has not sent",
                           title(operation.number, operation.signature), outside_->name(from),
                           chunk.phase, outside_->name(rank_)));
}

std::optional<Error> Channel::disagreement(const Operation& operation, int from,
                                           const Chunk& chunk) const {
  const auto& ranks = operation.ranks;
  const bool is_departure = operation.signature.kind == static_cast<uint8_t>(Kind::kDeparture);
  const bool agree = is_departure ? chunk.signature.kind == operation.signature.kind
                                  : chunk.signature == operation.signature;
  const bool is_in = std::binary_search(ranks.begin(), ranks.end(), from);
  if (agree && is_in && chunk.phase < operation.algorithm->phases() && from != rank_) return {};
  return disagreement(operation.number, operation.signature, from, chunk.signature);
}

Error Channel::disagreement(uint64_t number, const Signature& signature, int from,
                            const Signature& theirs) const {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: the members disagree about operation {}: {} calls {}, {} calls {}",
                           outside_->group_name(), number, outside_->name(rank_),
                           describe(signature), outside_->name(from), describe(theirs)));
}

void Channel::on_asked(int from, const Awaited& awaited) {
  Lock lock(mutex_);
  const auto found = operations_.find(awaited.number);
  if (failure_ || found == operations_.end() || awaited.number >= kDepartures) return;
  const Signature& signature = found->second->signature;
  if (signature == awaited.signature) return;
  const Error wrong = disagreement(awaited.number, signature, from, awaited.signature);
  lock.unlock();
  fail_and_tell(wrong);
}

}  // namespace weft::collective
