// Tensors between processes of one host, which go through memory that both have mapped:
// docs/memory.md.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/codec.h"
#include "weft/export.h"

namespace weft {

/// From now on CPU tensors of 32 KiB and more are made in memory that this process shares with its
/// neighbours. A result that a function has made there and that nobody else has goes to the caller
/// as it is, and a borrowed argument is read where it lies; others are copied once. To be called
/// before tensors are made, usually first in main; what is said in Options::shared_memory_bytes is
/// the most that is used. Harmless if it was called before.
///
/// A forked child sees tensors in that memory as its parent does, and the parent what the child
/// writes to them.
WEFT_API void use_shared_allocator();

/// A parameter of a remote function that the function only reads, through get(), and only until it
/// returns. Callers pass a tensor. It is not copied if it lies in shared memory, so the caller must
/// not change it before the call has its outcome. A call of a function that has kept or changed the
/// tensor fails, and the error says so.
template <typename T>
class Borrowed {
  static_assert(!sizeof(T), "only at::Tensor can be borrowed");
};

template <>
class Borrowed<at::Tensor> {
 public:
  Borrowed(at::Tensor tensor) : tensor_(std::move(tensor)) {}  // NOLINT: callers pass tensors
  const at::Tensor& get() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

template <>
struct Codec<Borrowed<at::Tensor>> {
  static void encode(Encoder& out, const Borrowed<at::Tensor>& value) {
    out.borrowed_tensor(value.get());
  }
  static Borrowed<at::Tensor> decode(Decoder& in) { return in.tensor(); }
  static void describe(TypeDescription& out) { out.type<at::Tensor>(); }
};

namespace detail {

template <typename T>
inline constexpr bool kIsBorrowed = false;
template <typename T>
inline constexpr bool kIsBorrowed<Borrowed<T>> = true;

/// The borrowed arguments of one call, while its function runs.
class WEFT_API BorrowedArguments {
 public:
  template <typename T>
  void add(const T& argument) {
    if constexpr (kIsBorrowed<T>) watch(argument.get());
  }
  /// The function has returned, and the arguments are gone. Throws kInvalidArgument unless nobody
  /// has kept or changed one.
  void check(const std::string& function) const;

 private:
  struct Watched {
    at::Tensor tensor;
    uint64_t version;
  };
  void watch(const at::Tensor& tensor);
  std::vector<Watched> watched_;
};

}  // namespace detail

}  // namespace weft
