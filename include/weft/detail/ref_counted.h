// Intrusive reference counting: one allocation and one atomic per owner.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "weft/export.h"

namespace weft::detail {

class WEFT_API RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void add_ref() const noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  /// False if the last reference is gone and the object about to be destroyed.
  bool try_add_ref() const noexcept {
    uint32_t refs = refs_.load(std::memory_order_relaxed);
    while (refs != 0) {
      if (refs_.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }
  bool sole_owner() const noexcept { return refs_.load(std::memory_order_acquire) == 1; }

 protected:
  virtual ~RefCounted() = default;

 private:
  mutable std::atomic<uint32_t> refs_{1};
};

/// Owns one reference. Made from a fresh object (which starts with one) by `adopt`.
template <typename T>
class Ref {
 public:
  Ref() = default;
  static Ref adopt(T* fresh) { return Ref(fresh); }
  static Ref share(T* object) {
    if (object) object->add_ref();
    return Ref(object);
  }
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) object_->add_ref();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <typename U>
  Ref(Ref<U> other) noexcept : object_(other.take()) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  T* take() noexcept { return std::exchange(object_, nullptr); }

 private:
  explicit Ref(T* object) : object_(object) {}
  T* object_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::adopt(new T(std::forward<Args>(args)...));
}

}  // namespace weft::detail
