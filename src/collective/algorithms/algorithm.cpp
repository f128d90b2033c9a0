// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/algorithm.h"

#include <utility>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::collective {

namespace {

// Up to this size one message less is worth more than the elements that are sent and added more
// than once. Two members send equally much in both ways, so their limit is higher.
constexpr int64_t kFewBytes = 64 * 1024;
constexpr int64_t kFewBytesOfTwo = 1024 * 1024;

int64_t elements_of(const Tensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.numel() * tensor.element_size();
  return bytes;
}

void check_others(const Place& place, const Tensors& own, const std::vector<Tensors>& chunks) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i != place.own) check_like(own, chunks[i]);
  }
}

// Folds the chunks of the others into `own`.
void fold_into(const Place& place, const Folding& folding, Tensors& own,
               std::vector<Tensors> chunks) {
  check_others(place, own, chunks);
  chunks[place.own] = own;
  fold(folding, own, chunks, place.own);
}

void copy(Tensors& to, const Tensors& from) {
  check_like(to, from);
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

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

// Phase 0 is a reduce-scatter: each member reduces one share. Phase 1 is an all-gather of shares.
class ReduceByShares final : public Algorithm {
 public:
  ReduceByShares(Place place, Tensors tensors, const Folding& folding)
      : Algorithm(place, 2), folding_(folding) {
    const int64_t elements = elements_of(tensors);
    const auto size = static_cast<int64_t>(place.size);
    for (int64_t i = 0; i < size; ++i) {
      shares_.push_back(slice(tensors, elements * i / size, elements * (i + 1) / size));
    }
  }

  Sendings begin() override {
    return to_each_other(0, [this](size_t i) { return shares_[i]; });
  }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) override {
    if (phase == 0) {
      // This member's own share may be overwritten: it was not sent to anybody.
      fold_into(place(), folding_, shares_[place().own], std::move(chunks));
      return to_others(1, shares_[place().own]);
    }
    // The share of member i may be overwritten: member i has received what this member gave to it,
    // otherwise it could not have sent the reduction.
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (i != place().own) copy(shares_[i], chunks[i]);
    }
    return {};
  }

 private:
  const Folding folding_;
  std::vector<Tensors> shares_;
};

class Broadcast final : public Algorithm {
 public:
  Broadcast(Place place, Tensors tensors, size_t root)
      : Algorithm(place, 1), tensors_(std::move(tensors)), root_(root) {}

  Sendings begin() override { return root_ == place().own ? to_others(0, tensors_) : Sendings(); }
  bool expects(uint8_t, size_t from) const override {
    return root_ != place().own && from == root_;
  }
  Sendings go_on(uint8_t, std::vector<Tensors> chunks) override {
    if (root_ != place().own) copy(tensors_, chunks[root_]);
    return {};
  }

 private:
  Tensors tensors_;
  const size_t root_;
};

// The root sends when all members have begun the operation: a late member would otherwise have to
// keep all that the root has sent in the meantime. In phase 0 every member tells every other that
// it has begun, so that each of them knows which member is late.
class BroadcastOfMuch final : public Algorithm {
 public:
  BroadcastOfMuch(Place place, Tensors tensors, size_t root)
      : Algorithm(place, 2), tensors_(std::move(tensors)), root_(root) {}

  Sendings begin() override { return to_others(0, {}); }
  bool expects(uint8_t phase, size_t from) const override {
    return phase == 0 ? from != place().own : !is_root() && from == root_;
  }
  Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) override {
    if (phase == 0) return is_root() ? to_others(1, tensors_) : Sendings();
    if (!is_root()) copy(tensors_, chunks[root_]);
    return {};
  }

 private:
  bool is_root() const { return place().own == root_; }

  Tensors tensors_;
  const size_t root_;
};

class AllGather final : public Algorithm {
 public:
  AllGather(Place place, Tensors tensors) : Algorithm(place, 1), tensors_(std::move(tensors)) {}

  Sendings begin() override { return to_others(0, tensors_); }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  Sendings go_on(uint8_t, std::vector<Tensors> chunks) override {
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i != place().own) check_gathered(chunks[i]);
    }
    for (const at::Tensor& own : tensors_) chunks[place().own].push_back(own.clone());
    result_ = std::move(chunks);
    return {};
  }
  std::vector<Tensors> take_result() override { return std::move(result_); }

 private:
  void check_gathered(const Tensors& got) const {
    if (got.size() != tensors_.size()) {
      throw Error(ErrorCode::kBadMessage,
                  fmt::format("{} tensors in place of {}", got.size(), tensors_.size()));
    }
    for (const at::Tensor& each : got) {
      if (!each.defined()) throw Error(ErrorCode::kBadMessage, "an undefined tensor");
    }
  }

  const Tensors tensors_;
  std::vector<Tensors> result_;
};

class ReduceScatter final : public Algorithm {
 public:
  ReduceScatter(Place place, Tensors tensors, const Folding& folding)
      : Algorithm(place, 1), tensors_(std::move(tensors)), folding_(folding) {}

  Sendings begin() override {
    return to_each_other(0, [this](size_t i) { return Tensors{tensors_[i]}; });
  }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  Sendings go_on(uint8_t, std::vector<Tensors> chunks) override {
    Tensors own{tensors_[place().own].clone()};
    fold_into(place(), folding_, own, std::move(chunks));
    result_.push_back(std::move(own));
    return {};
  }
  std::vector<Tensors> take_result() override { return std::move(result_); }

 private:
  const Tensors tensors_;
  const Folding folding_;
  std::vector<Tensors> result_;
};

}  // namespace

std::unique_ptr<Algorithm> all_reduce_algorithm(Place place, Tensors tensors,
                                                const Folding& folding) {
  if (place.size > 1 && bytes_of(tensors) <= (place.size == 2 ? kFewBytesOfTwo : kFewBytes)) {
    return std::make_unique<ReduceByAll>(place, std::move(tensors), folding);
  }
  return std::make_unique<ReduceByShares>(place, std::move(tensors), folding);
}

std::unique_ptr<Algorithm> broadcast_algorithm(Place place, Tensors tensors, size_t root) {
  if (bytes_of(tensors) > kFewBytes) {
    return std::make_unique<BroadcastOfMuch>(place, std::move(tensors), root);
  }
  return std::make_unique<Broadcast>(place, std::move(tensors), root);
}

std::unique_ptr<Algorithm> all_gather_algorithm(Place place, Tensors tensors) {
  return std::make_unique<AllGather>(place, std::move(tensors));
}

std::unique_ptr<Algorithm> reduce_scatter_algorithm(Place place, Tensors tensors,
                                                    const Folding& folding) {
  return std::make_unique<ReduceScatter>(place, std::move(tensors), folding);
}

std::unique_ptr<Algorithm> barrier_algorithm(Place place) {
  return std::make_unique<AllGather>(place, Tensors());
}

}  // namespace weft::collective
