// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/algorithm.h"

#include <utility>

#include <fmt/format.h>

#include "collective/algorithms/choice.h"
#include "collective/algorithms/chunks.h"
#include "weft/error.h"

namespace weft::collective {

namespace {

// Up to so many bytes the root sends at once.
constexpr int64_t kSentAtOnce = 64 * 1024;

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
//
// In phase 1 the tensors go down a tree of members (choice.h), each of which sends them on.
class BroadcastOfMuch final : public Algorithm {
 public:
  BroadcastOfMuch(Place place, Tensors tensors, size_t root)
      : Algorithm(place, 2), tensors_(std::move(tensors)), tree_(broadcast_tree(place, root)) {}

  Sendings begin() override { return to_others(0, {}); }
  bool expects(uint8_t phase, size_t from) const override {
    return phase == 0 ? from != place().own : from == tree_.parent;
  }
  bool expects_all(uint8_t phase) const override { return phase == 0; }
  Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) override {
    if (phase == 0) return tree_.parent ? Sendings() : to_children();
    if (!tree_.parent) return {};
    copy(tensors_, chunks[*tree_.parent]);
    return to_children();
  }

 private:
  Sendings to_children() const {
    Sendings sendings;
    for (const size_t child : tree_.children) sendings.push_back({child, 1, tensors_});
    return sendings;
  }

  Tensors tensors_;
  const BroadcastTree tree_;
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
    fold_into(place(), folding_, own, own, std::move(chunks));
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

std::unique_ptr<Algorithm> broadcast_algorithm(Place place, Tensors tensors, size_t root) {
  if (bytes_of(tensors) > kSentAtOnce) {
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
