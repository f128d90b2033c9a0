// SPDX-License-Identifier: BSD-3-Clause
#include "support/samples.h"

#include <algorithm>
#include <stdexcept>

namespace bench {

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of nothing");
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<std::vector<double>> take_turns(size_t rounds,
                                            const std::vector<Measurement>& measurements) {
  std::vector<std::vector<double>> series(measurements.size());
  for (size_t round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < measurements.size(); ++i) {
      if (!measurements[i]) continue;
      const double value = measurements[i]();
      if (round > 0) series[i].push_back(value);
    }
  }
  return series;
}

}  // namespace bench
