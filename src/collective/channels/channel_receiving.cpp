// Channel: chunks and questions of the other members.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collective/channels/channel.h"
#include "collective/channels/operation.h"

namespace weft::collective {

namespace {

// So many chunks are kept for operations that have not begun here.
constexpr size_t kMostEarlyChunks = 4096;

}  // namespace

void Channel::on_chunk(int from, Chunk chunk) {
  std::optional<Error> wrong;
  Arrival arrival;
  const bool departs = chunk.number >= kDepartures;
  {
    const Lock lock(mutex_);
    if (failure_) return;
    wrong = take_in(from, chunk, arrival);
  }
  if (wrong) return fail_and_tell(*wrong);
  if (arrival.used_at_once) use_at_once(arrival.operation, from, chunk);
  if (arrival.advances) advance(arrival.operation);
  if (departs) on_departed();
}

// Sets `arrival` to what the caller is to do.
std::optional<Error> Channel::take_in(int from, Chunk& chunk, Arrival& arrival) {
  if (const auto wrong = impossible(from, chunk)) return wrong;
  if (chunk.number >= kDepartures && chunk.epoch >= epoch_) {
    departed_[chunk.epoch].emplace(from, chunk.signature.elements);
  }
  if (const auto found = operations_.find(chunk.number); found != operations_.end()) {
    const OperationRef operation = found->second;
    if (const auto wrong = disagreement(*operation, from, chunk)) return wrong;
    take_into(operation, from, chunk, arrival);
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
void Channel::take_into(const OperationRef& operation, int from, Chunk& chunk, Arrival& arrival) {
  if (!is_new(*operation, from, chunk)) return;
  if (operation->algorithm->uses_at_once(chunk.phase)) {
    keep(*operation, from, {}, chunk.phase);
    ++operation->using_chunks[chunk.phase];
    arrival = {operation, true, false};
    return;
  }
  keep(*operation, from, std::move(chunk.tensors), chunk.phase);
  if (operation->advancing || !can_go_on(*operation)) return;
  if (operation->heavy) {
    advance_later(operation);
  } else {
    arrival = {operation, false, true};
  }
}

void Channel::use_at_once(const OperationRef& operation, int from, const Chunk& chunk) {
  const size_t place = place_of(*operation, from);
  attempt(*operation, [&] { operation->algorithm->use(chunk.phase, place, chunk.tensors); });
  {
    const Lock lock(mutex_);
    --operation->using_chunks[chunk.phase];
    if (operation->advancing) return;
    if (!failure_ && !can_go_on(*operation)) return;
    if (!failure_ && operation->phase < operation->algorithm->phases() - 1)
      return advance_later(operation);
  }
  advance(operation);
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
