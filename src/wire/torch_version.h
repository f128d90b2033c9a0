// WEFT_TORCH_AT_LEAST, and functions that hide differences between versions of libtorch (1.13 and
// 2.x). More code that depends on the version is in wire/dtype.cpp, autograd/torch_graph.cpp,
// optim/param_state.h, weft/nn/torch_options.h and weft/nn/torch_values.h, and nowhere else.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#define WEFT_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||       \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace weft::wire {

/// A resizable storage of `bytes` bytes that owns `data`.
inline c10::Storage make_storage(size_t bytes, c10::DataPtr data) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                      c10::GetCPUAllocator(), /*resizable=*/true);
}

/// The backend's own handle of a stream; null where libtorch does not give it.
inline void* native_handle([[maybe_unused]] const c10::Stream& stream) {
#if WEFT_TORCH_AT_LEAST(2, 6)
  try {
    return stream.native_handle();
  } catch (const c10::Error&) {
    return nullptr;
  }
#else
  return nullptr;
#endif
}

}  // namespace weft::wire
