// The calls that one connection serves, found by their ids. Intrusive: adding one allocates nothing
// but, now and then, a larger table.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::rpc {

/// `Call` has id() and, for the index alone, `next` and `previous`.
template <typename Call>
class CallIndex {
 public:
  void add(Call& call) {
    if (size_ == 2 * buckets_.size()) grow();
    link(call);
    ++size_;
  }
  void remove(Call& call) {
    if (call.next) call.next->previous = call.previous;
    (call.previous ? call.previous->next : bucket(call.id())) = call.next;
    call.next = call.previous = nullptr;
    --size_;
  }

  /// Calls `f` with every call of this id until it returns true: the id is the caller's, and a
  /// caller may be wrong. True: `f` did.
  template <typename F>
  bool find(uint64_t id, const F& f) {
    for (Call* call = bucket(id); call; call = call->next) {
      if (call->id() == id && f(*call)) return true;
    }
    return false;
  }
  template <typename F>
  void for_each(const F& f) const {
    for (Call* first : buckets_) {
      for (Call* call = first; call; call = call->next) f(*call);
    }
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  static constexpr size_t kFirstBuckets = 16;  // a power of two, as all

  // Weft's ids are a generation and a slot; slots are taken from 0, so they spread well.
  Call*& bucket(uint64_t id) { return buckets_[id & (buckets_.size() - 1)]; }
  void link(Call& call) {
    Call*& first = bucket(call.id());
    call.previous = nullptr;
    call.next = first;
    if (first) first->previous = &call;
    first = &call;
  }
  void grow() {
    std::vector<Call*> old(2 * buckets_.size(), nullptr);
    old.swap(buckets_);
    for (Call* first : old) {
      while (first) {
        Call* call = first;
        first = first->next;
        link(*call);
      }
    }
  }

  std::vector<Call*> buckets_ = std::vector<Call*>(kFirstBuckets, nullptr);
  size_t size_ = 0;
};

}  // namespace weft::rpc
