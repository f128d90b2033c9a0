// SPDX-License-Identifier: BSD-3-Clause
#include "support/boxed_add.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "support/samples.h"

namespace bench {

double boxed_add_microseconds(size_t count) {
  const c10::OperatorHandle operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  torch::jit::Stack stack;
  const auto start = Clock::now();
  for (size_t i = 0; i < count; ++i) {
    torch::jit::push(stack, a, b, 1);
    operation.callBoxed(&stack);
    torch::jit::drop(stack, 1);
  }
  return microseconds_since(start) / static_cast<double>(count);
}

}  // namespace bench
