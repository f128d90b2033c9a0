// SPDX-License-Identifier: BSD-3-Clause
#include "nn/bucket_plan.h"

#include <algorithm>
#include <map>

namespace weft::nn {

namespace {

// Well below the 4,096 tensors that fit into a message.
constexpr size_t kMostParameters = 1000;

struct Filling {
  std::vector<size_t> parameters;
  size_t bytes = 0;
  bool is_first = true;  // whether it is the first bucket of its type
};

}  // namespace

BucketPlan plan_buckets(const std::vector<Bucketed>& parameters, const std::vector<size_t>& order,
                        const BucketLimits& limits) {
  BucketPlan plan;
  std::map<std::string, Filling> fillings;
  const auto close = [&](Filling& filling) {
    if (!filling.parameters.empty()) plan.push_back(std::move(filling.parameters));
    filling = {};
    filling.is_first = false;
  };
  for (const size_t index : order) {
    const Bucketed& parameter = parameters[index];
    if (parameter.sparse) {
      plan.push_back({index});
      continue;
    }
    Filling& filling = fillings[parameter.type];
    filling.parameters.push_back(index);
    filling.bytes += parameter.bytes;
    const size_t limit = filling.is_first ? limits.first_bytes : limits.bytes;
    if (filling.bytes >= limit || filling.parameters.size() == kMostParameters) close(filling);
  }
  for (auto& [type, filling] : fillings) close(filling);

  // Sort the buckets by the order in which they will be complete.
  std::vector<size_t> position(parameters.size());
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  std::sort(plan.begin(), plan.end(),
            [&](const auto& a, const auto& b) { return position[a.back()] < position[b.back()]; });
  return plan;
}

BucketProgress::BucketProgress(const BucketPlan& plan, size_t parameters)
    : bucket_of_(parameters), ready_(parameters) {
  for (size_t bucket = 0; bucket < plan.size(); ++bucket) {
    for (const size_t parameter : plan[bucket]) bucket_of_[parameter] = bucket;
    incomplete_.push_back(plan[bucket].size());
  }
}

std::vector<size_t> BucketProgress::on_ready(size_t parameter) {
  std::vector<size_t> complete;
  if (ready_[parameter]) return complete;
  ready_[parameter] = true;
  --incomplete_[bucket_of_[parameter]];
  while (next_ < incomplete_.size() && incomplete_[next_] == 0) complete.push_back(next_++);
  return complete;
}

std::vector<size_t> BucketProgress::on_all() {
  std::vector<size_t> rest;
  while (next_ < incomplete_.size()) rest.push_back(next_++);
  return rest;
}

std::vector<size_t> BucketProgress::missing() const {
  std::vector<size_t> missing;
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) missing.push_back(i);
  }
  return missing;
}

}  // namespace weft::nn
