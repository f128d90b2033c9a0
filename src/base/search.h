// Which threads search for tasks, so that one more is called only if nobody does.
//
// A thread that adds a task, and then finds that nobody searches, calls a helper. A helper that
// stops searching must look for tasks once more afterwards: so either the helper sees the task, or
// the thread that added it sees that nobody searches. A helper that finds a task stops searching,
// and calls the next if more can be done. No threads and no waiting in here;
// tests/unit/base/leadership_simulation_test.cpp simulates them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace weft::base {

class Search {
 public:
  /// True: the caller must have a helper begin, which counts as searching from now on.
  bool call_first() {
    size_t nobody = 0;
    return searching_.compare_exchange_strong(nobody, 1, std::memory_order_seq_cst);
  }
  /// The same for one more helper, whoever searches.
  void call_another() { searching_.fetch_add(1, std::memory_order_seq_cst); }
  /// The helper that was called could not begin.
  void call_failed() { searching_.fetch_sub(1, std::memory_order_seq_cst); }

  size_t searching() const { return searching_.load(std::memory_order_seq_cst); }

 private:
  friend class Searcher;
  alignas(64) std::atomic<size_t> searching_{0};
};

/// One thread's part.
class Searcher {
 public:
  explicit Searcher(Search& search) : search_(search) {}

  /// The thread was called, and counts already.
  void begin_called() { searching_ = true; }
  void begin() {
    if (!std::exchange(searching_, true))
      search_.searching_.fetch_add(1, std::memory_order_seq_cst);
  }
  /// False: the thread did not search.
  bool end() {
    if (!std::exchange(searching_, false)) return false;
    search_.searching_.fetch_sub(1, std::memory_order_seq_cst);
    return true;
  }

 private:
  Search& search_;
  bool searching_ = false;
};

}  // namespace weft::base
