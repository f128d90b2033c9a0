// Leaf tensors and their gradients.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autograd/torch_graph.h"

namespace weft::autograd {

class Leaves {
 public:
  void add(const at::Tensor& leaf, at::Tensor gradient) {
    Entry& entry = entries_[leaf.unsafeGetTensorImpl()];
    entry.leaf = leaf;
    accumulate(entry.gradient, std::move(gradient));
  }
  void add(Leaves more) {
    for (auto& [key, entry] : more.entries_) add(entry.leaf, std::move(entry.gradient));
  }
  /// Where there is one.
  void replace(const at::Tensor& leaf, at::Tensor gradient) {
    auto found = entries_.find(leaf.unsafeGetTensorImpl());
    if (found != entries_.end()) found->second.gradient = std::move(gradient);
  }
  void put(const at::Tensor& leaf, at::Tensor gradient) {
    entries_[leaf.unsafeGetTensorImpl()] = {leaf, std::move(gradient)};
  }
  /// Undefined if there is none.
  at::Tensor find(const at::Tensor& leaf) const {
    auto found = entries_.find(leaf.unsafeGetTensorImpl());
    return found == entries_.end() ? at::Tensor() : found->second.gradient;
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> all() const {
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    for (const auto& [key, entry] : entries_) pairs.emplace_back(entry.leaf, entry.gradient);
    return pairs;
  }
  size_t size() const { return entries_.size(); }
  bool has_sparse() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const auto& each) { return each.second.gradient.is_sparse(); });
  }

 private:
  struct Entry {
    at::Tensor leaf, gradient;
  };
  std::unordered_map<c10::TensorImpl*, Entry> entries_;  // the leaf keeps its key
};

}  // namespace weft::autograd
