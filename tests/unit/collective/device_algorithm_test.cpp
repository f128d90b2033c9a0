// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_algorithm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "wire/dtype.h"

namespace weft::collective {
namespace {

// Members may run different versions of libtorch, whose own numbers differ from these.
TEST(DeviceAlgorithm, DescribesATensorByItsTypesNumberOnTheWire) {
  const auto algorithm =
      device_all_gather_algorithm({.own = 0, .size = 2}, nullptr, nullptr, at::ones({5, 3}), {});

  const Algorithm::Sendings sent = algorithm->begin();

  ASSERT_EQ(sent.size(), 1u);
  const at::Tensor& announcement = sent[0].tensors.at(0);
  ASSERT_EQ(announcement.numel(), 3);
  EXPECT_EQ(announcement[0].item<int64_t>(), *wire::dtype_to_wire(at::kFloat));
  EXPECT_NE(announcement[0].item<int64_t>(), static_cast<int64_t>(at::kFloat));
  EXPECT_EQ(announcement[1].item<int64_t>(), 5);
  EXPECT_EQ(announcement[2].item<int64_t>(), 3);
}

}  // namespace
}  // namespace weft::collective
