// The ways of an all_reduce; choice.h says when which is taken.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>

#include "collective/algorithms/algorithm.h"
#include "collective/algorithms/choice.h"
#include "collective/algorithms/chunks.h"

namespace weft::collective {

namespace {

// Every member sends all its tensors to every other member and reduces everything itself.
class ReduceByAll final : public Algorithm {
 public:
  ReduceByAll(Place place, Tensors tensors, const Folding& folding)
      : Algorithm(place, 1), tensors_(std::move(tensors)), folding_(folding) {}

  Sendings begin() override { return to_others(0, tensors_); }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  // The result goes to other memory: `tensors_` may still be on its way to the others.
  Sendings go_on(uint8_t, std::vector<Tensors> chunks) override {
    check_others(place(), tensors_, chunks);
    chunks[place().own] = tensors_;
    result_.push_back(fold_apart(folding_, chunks, place().own));
    return {};
  }
  std::vector<Tensors> take_result() override { return std::move(result_); }

 private:
  const Tensors tensors_;
  const Folding folding_;
  std::vector<Tensors> result_;
};

// Recursive doubling. In each step a member exchanges what it has with a partner, and both have the
// reduction of twice as many members then. Two partners compute the same: a + b is b + a, bit for
// bit. So in the end all members have the same bits.
//
// That takes a power of two. If there are more members, each of the surplus lends its tensors to a
// neighbour before (phase 0) and gets the result from it in the end (the last phase).
class ReduceByDoubling final : public Algorithm {
 public:
  ReduceByDoubling(Place place, Tensors tensors, const Folding& folding)
      : Algorithm(place, static_cast<uint8_t>(std::bit_width(place.size) - 1 + 2)),
        have_(std::move(tensors)),
        folding_(folding),
        surplus_(place.size - std::bit_floor(place.size)) {}

  Sendings begin() override {
    if (lends()) return {{place().own + 1, 0, have_}};
    return surplus_ > 0 ? Sendings() : to_partner(1);
  }

  bool expects(uint8_t phase, size_t from) const override {
    if (phase == 0) return borrows() && from + 1 == place().own;
    if (phase == last()) return lends() && from == place().own + 1;
    return partner(phase) == from;
  }
  bool expects_all(uint8_t) const override { return false; }

  Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) override {
    if (phase == last()) return end(chunks);
    if (phase == 0) {
      if (borrows()) add(chunks[place().own - 1], place().own - 1);
      return surplus_ > 0 && !lends() ? to_partner(1) : Sendings();
    }
    if (const auto from = partner(phase)) add(chunks[*from], *from);
    return to_partner(static_cast<uint8_t>(phase + 1));
  }

  std::vector<Tensors> take_result() override { return {std::move(have_)}; }

 private:
  uint8_t last() const { return static_cast<uint8_t>(phases() - 1); }
  bool lends() const { return place().own < 2 * surplus_ && place().own % 2 == 0; }
  bool borrows() const { return place().own < 2 * surplus_ && place().own % 2 == 1; }

  // The members that double, by index: those that borrow first.
  size_t index() const { return borrows() ? place().own / 2 : place().own - surplus_; }
  size_t place_of(size_t index) const {
    return index < surplus_ ? 2 * index + 1 : index + surplus_;
  }
  std::optional<size_t> partner(uint8_t phase) const {
    if (lends() || phase == 0 || phase >= last()) return std::nullopt;
    return place_of(index() ^ (size_t{1} << (phase - 1)));
  }

  // After the last step of all it is the result that goes, to the member that lent.
  Sendings to_partner(uint8_t phase) {
    if (phase == last()) {
      if (lends()) return {};
      scale();
      return borrows() ? Sendings{{place().own - 1, phase, have_}} : Sendings();
    }
    const auto to = partner(phase);
    return to ? Sendings{{*to, phase, have_}} : Sendings();
  }

  Sendings end(std::vector<Tensors>& chunks) {
    if (lends()) {
      check_like(have_, chunks[place().own + 1]);
      have_ = std::move(chunks[place().own + 1]);
    }
    return {};
  }

  // The sum goes to the memory of the chunk: what this member has may be on its way to others.
  void add(Tensors& chunk, size_t from) {
    check_like(have_, chunk);
    const bool is_first = place().own < from;
    std::vector<Tensors> both{is_first ? have_ : chunk, is_first ? chunk : have_};
    have_ = fold_apart({folding_.op, 1}, both, is_first ? 0 : 1);
  }
  void scale() {
    if (folding_.scale == 1) return;
    Tensors scaled;
    for (const at::Tensor& each : have_) scaled.push_back(each * folding_.scale);
    have_ = std::move(scaled);
  }

  Tensors have_;
  const Folding folding_;
  const size_t surplus_;
};

// A segment takes two phases: a reduce-scatter, in which each member reduces one share, and an
// all-gather of the shares. The reduce-scatter of the next segment comes before the all-gather of a
// segment: while that waits for the others, there is something to reduce.
class ReduceByShares final : public Algorithm {
 public:
  ReduceByShares(Place place, const Tensors& tensors, const Folding& folding, size_t segments,
                 SharedMemory shared_memory)
      : Algorithm(place, static_cast<uint8_t>(2 * segments)),
        folding_(folding),
        shared_memory_(std::move(shared_memory)),
        shares_(segments),
        reductions_(segments) {
    const int64_t elements = elements_of(tensors);
    const auto parts = static_cast<int64_t>(segments * place.size);
    int64_t part = 0;
    for (std::vector<Tensors>& shares : shares_) {
      for (size_t i = 0; i < place.size; ++i, ++part) {
        shares.push_back(slice(tensors, elements * part / parts, elements * (part + 1) / parts));
      }
    }
  }

  Sendings begin() override {
    Sendings sendings;
    for (size_t segment = 0; segment < kAhead; ++segment) scatter(segment, sendings);
    return sendings;
  }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }

  Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) override {
    const Step step = step_of(phase);
    if (!step.reduces) {
      take_over_reduction(step.segment);
      return {};
    }
    Sendings sendings = reduce(step.segment, std::move(chunks));
    scatter(step.segment + kAhead, sendings);
    return sendings;
  }

  // The share of member i may be overwritten: member i has received what this member gave to it,
  // otherwise it could not have sent the reduction.
  bool uses_at_once(uint8_t phase) const override { return !step_of(phase).reduces; }
  void use(uint8_t phase, size_t from, const Tensors& chunk) override {
    copy(shares_[step_of(phase).segment][from], chunk);
  }

 private:
  // So many segments are on their way to be reduced.
  static constexpr size_t kAhead = 2;

  struct Step {
    size_t segment;
    bool reduces;  // else it gathers
  };
  // In this order: reduce 0, reduce 1, gather 0, reduce 2, gather 1, ... gather n - 1.
  Step step_of(uint8_t phase) const {
    const size_t last = shares_.size() - 1;
    if (phase == 0) return {0, true};
    if (phase == 2 * last + 1) return {last, false};
    return phase % 2 == 1 ? Step{(phase + 1U) / 2, true} : Step{phase / 2U - 1, false};
  }
  uint8_t phase_of(const Step& step) const {
    const size_t last = shares_.size() - 1;
    const size_t phase = step.reduces           ? (step.segment == 0 ? 0 : 2 * step.segment - 1)
                         : step.segment == last ? 2 * last + 1
                                                : 2 * step.segment + 2;
    return static_cast<uint8_t>(phase);
  }

  // This member's own share may be overwritten: it was not sent to anybody. Where there is memory
  // that the others can read, the reduction is made there, and copied once for each member.
  Sendings reduce(size_t segment, std::vector<Tensors> chunks) {
    Tensors& own = shares_[segment][place().own];
    Tensors& reduction = reductions_[segment];
    if (shared_memory_) reduction = shared_memory_(own);
    const bool is_shared = !reduction.empty();
    fold_into(place(), folding_, is_shared ? reduction : own, own, std::move(chunks));
    Sendings sendings = to_others(phase_of({segment, false}), is_shared ? reduction : own);
    for (Sending& each : sendings) each.lasting = is_shared;
    return sendings;
  }

  // After the others have it.
  void take_over_reduction(size_t segment) {
    const Tensors reduction = std::exchange(reductions_[segment], {});
    if (!reduction.empty()) copy(shares_[segment][place().own], reduction);
  }

  void scatter(size_t segment, Sendings& sendings) const {
    if (segment >= shares_.size()) return;
    Sendings more =
        to_each_other(phase_of({segment, true}), [&](size_t i) { return shares_[segment][i]; });
    std::move(more.begin(), more.end(), std::back_inserter(sendings));
  }

  const Folding folding_;
  const SharedMemory shared_memory_;
  std::vector<std::vector<Tensors>> shares_;  // by segment and place
  std::vector<Tensors> reductions_;           // by segment: of this member's share, if not in place
};

}  // namespace

std::unique_ptr<Algorithm> all_reduce_algorithm(Place place, Tensors tensors,
                                                const Folding& folding, AllReduceWay way,
                                                SharedMemory shared_memory) {
  const AllReduceChoice choice = choose_all_reduce(way, bytes_of(tensors), place.size);
  switch (choice.way) {
    case AllReduceWay::kDirect:
      return std::make_unique<ReduceByAll>(place, std::move(tensors), folding);
    case AllReduceWay::kDoubling:
      return std::make_unique<ReduceByDoubling>(place, std::move(tensors), folding);
    case AllReduceWay::kAutomatic:
    case AllReduceWay::kShares:
      break;
  }
  return std::make_unique<ReduceByShares>(place, tensors, folding, choice.segments,
                                          std::move(shared_memory));
}

}  // namespace weft::collective
