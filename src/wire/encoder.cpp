// The class Encoder of weft/codec.h.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/dtype.h"
#include "wire/limits.h"
#include "wire/tensor_entry.h"

namespace weft {

namespace {

// Each thread keeps a buffer for its next encoder: an allocation for each call would cost too much.
struct WarmBuffer {
  std::byte* memory = nullptr;
  size_t size = 0;
  std::vector<char> entries;
  std::vector<Encoder::OutgoingTensor> tensors;
  ~WarmBuffer();
};
thread_local WarmBuffer warm;
constexpr size_t kFirstBuffer = 4096;
constexpr size_t kKeptBuffer = 1 << 20;
// A view that spans up to so many bytes is sent with all of them, so that its strides are kept.
constexpr uint64_t kSpanAlwaysSent = 4096;
constexpr size_t kMaxPayload = wire::kMaxBody - (8 << 20);  // leaves room for the tensor table
// True when this thread's buffer is destroyed: destructors of static objects may still use encoders
// after that.
thread_local bool warm_gone = false;

WarmBuffer::~WarmBuffer() {
  std::free(memory);
  warm_gone = true;
}

[[noreturn]] void refuse(const at::Tensor& tensor, const char* why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a tensor of type {} with {} dimensions cannot be sent: {}",
                          tensor.toString(), tensor.dim(), why));
}

}  // namespace

Encoder::Encoder() : begin_(nullptr), end_(nullptr), limit_(nullptr) {
  if (warm_gone) return;
  begin_ = end_ = std::exchange(warm.memory, nullptr);
  limit_ = begin_ + std::exchange(warm.size, 0);
  entries_ = std::move(warm.entries);
  tensors_ = std::move(warm.tensors);
  entries_.clear();
  tensors_.clear();
}

Encoder::~Encoder() {
  const auto size = static_cast<size_t>(limit_ - begin_);
  if (warm_gone || warm.memory || size > kKeptBuffer) {
    std::free(begin_);
    return;
  }
  warm.memory = begin_;
  warm.size = size;
  tensors_.clear();
  warm.entries = std::move(entries_);
  warm.tensors = std::move(tensors_);
}

void Encoder::grow(size_t by) {
  const auto used = static_cast<size_t>(end_ - begin_);
  if (by > kMaxPayload || used + by > kMaxPayload) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a message of more than {} bytes besides its tensors; large data travels "
                    "as tensors",
                    kMaxPayload));
  }
  const auto old = static_cast<size_t>(limit_ - begin_);
  size_t size = old ? old : kFirstBuffer;
  while (size - used < by) size *= 2;
  size = std::min(size, kMaxPayload);  // write() would use more room without calling grow() again
  void* memory = std::realloc(begin_, size);
  if (!memory) throw std::bad_alloc();
  begin_ = static_cast<std::byte*>(memory);
  end_ = begin_ + used;
  limit_ = begin_ + size;
}

void Encoder::length(size_t count) {
  if (count > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("a container of {} elements", count));
  }
  scalar(static_cast<uint32_t>(count));
}

void Encoder::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    wire::TensorEntry entry;
    entry.flags = wire::kUndefined;
    append_entry(entries_, entry);
    tensors_.push_back({at::Tensor(), nullptr, 0, entries_.size()});
  } else if (!tensor.device().is_cpu()) {
    refuse(tensor,
           fmt::format("it is on {}; move it to the CPU first", tensor.device().str()).c_str());
  } else if (!wire::dtype_to_wire(tensor.scalar_type())) {
    refuse(tensor, "its element type has no wire form");
  } else if (tensor.dim() > static_cast<int64_t>(wire::kMaxDimensions)) {
    refuse(tensor, "it has more than 16 dimensions");
  } else if (tensor.layout() == at::kStrided || tensor.layout() == at::kSparse) {
    try {
      tensor.layout() == at::kStrided ? strided(tensor) : sparse(tensor);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadMessage) throw;
      // A receiver would refuse this tensor, so the caller is told at once.
      refuse(tensor, error.message().c_str());
    }
  } else {
    refuse(tensor, "its layout is neither dense nor sparse COO");
  }
  if (tensors_.size() > wire::kMaxRows) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("more than {} tensors in one message", wire::kMaxRows));
  }
}

void Encoder::borrowed_tensor(const at::Tensor& original) {
  const size_t first = tensors_.size();
  tensor(original);
  for (size_t i = first; i < tensors_.size(); ++i) tensors_[i].borrowed = true;
}

void Encoder::strided(const at::Tensor& original) {
  at::Tensor tensor = original;
  // If the original requires a gradient, autograd must record the operations below, even if this
  // thread has gradients off: the gradient of the tensor that is sent flows back through them.
  const c10::AutoGradMode mode(original.requires_grad() || c10::GradMode::is_enabled());
  if (tensor._is_zerotensor()) tensor = at::zeros_like(tensor);
  if (tensor.is_conj()) tensor = tensor.resolve_conj();
  if (tensor.is_neg()) tensor = tensor.resolve_neg();

  wire::TensorEntry entry;
  entry.dtype = tensor.scalar_type();
  entry.flags = original.requires_grad() ? wire::kRequiresGrad : 0;
  entry.dimensions = static_cast<uint8_t>(tensor.dim());
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), entry.sizes.begin());
  if (!tensor.is_contiguous()) {
    entry.flags |= wire::kStrided;
    std::copy(tensor.strides().begin(), tensor.strides().end(), entry.strides.begin());
    // A large view that uses less than half of the memory it spans is sent as a contiguous copy:
    // shape and values stay the same, strides do not.
    const uint64_t spanned = spanned_bytes(entry);
    if (spanned > kSpanAlwaysSent && spanned > 2 * static_cast<uint64_t>(tensor.nbytes())) {
      tensor = tensor.contiguous();
      entry.flags &= ~wire::kStrided;
    }
  }
  entry.bytes = spanned_bytes(entry);
  append_entry(entries_, entry);
  tensor_bytes_ += entry.bytes;
  const void* data = entry.bytes ? tensor.data_ptr() : nullptr;
  tensors_.push_back(
      {std::move(tensor), data, entry.bytes, entries_.size(), original.requires_grad()});
}

void Encoder::sparse(const at::Tensor& tensor) {
  const at::Tensor detached = tensor.detach();
  if (detached._values().dim() > static_cast<int64_t>(wire::kMaxDimensions)) {
    refuse(tensor, "its values have more than 16 dimensions");
  }
  wire::TensorEntry entry;
  entry.dtype = tensor.scalar_type();
  entry.flags = wire::kSparse;
  if (tensor.requires_grad()) entry.flags |= wire::kRequiresGrad;
  if (tensor.is_coalesced()) entry.flags |= wire::kCoalesced;
  entry.dimensions = static_cast<uint8_t>(tensor.dim());
  entry.sparse_dimensions = static_cast<uint8_t>(tensor.sparse_dim());
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), entry.sizes.begin());
  append_entry(entries_, entry);
  tensors_.push_back({tensor, nullptr, 0, entries_.size(), tensor.requires_grad()});
  strided(detached._indices().contiguous());
  // The receiver checks indices before it believes them: nobody may be able to change them then.
  tensors_.back().in_frame_only = true;
  strided(detached._values().contiguous());
}

}  // namespace weft
