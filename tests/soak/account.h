// Whether every call ran as often as its outcome says: the books of callers and callees.
//
// A caller numbers its calls to each callee from 0. The callee notes the numbers that ran; the
// caller notes the calls that failed, and whether those may have run.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rref/serial_set.h"

namespace weft::soak {

/// The callee's book about one caller.
struct Ran {
  uint64_t doubled = 0;           // numbers that ran more than once
  std::vector<uint64_t> missing;  // numbers below `up_to` that did not run
};

class CalleeBook {
 public:
  void note(int caller, uint64_t number) {
    std::lock_guard lock(mutex_);
    Entry& entry = by_caller_[caller];
    if (entry.ran.contains(number)) ++entry.doubled;
    entry.ran.insert(number);
  }
  Ran ran(int caller, uint64_t up_to) {
    std::lock_guard lock(mutex_);
    const Entry& entry = by_caller_[caller];
    Ran result{entry.doubled, {}};
    for (uint64_t number = 0; number < up_to; ++number) {
      if (!entry.ran.contains(number)) result.missing.push_back(number);
    }
    return result;
  }

 private:
  struct Entry {
    rref::SerialSet ran;
    uint64_t doubled = 0;
  };
  std::mutex mutex_;
  std::map<int, Entry> by_caller_;
};

class CallerBook {
 public:
  uint64_t next(int callee) {
    std::lock_guard lock(mutex_);
    return by_callee_[callee].next++;
  }
  void note_failed(int callee, uint64_t number, bool may_have_run) {
    std::lock_guard lock(mutex_);
    by_callee_[callee].failed[number] = may_have_run;
  }
  uint64_t made(int callee) {
    std::lock_guard lock(mutex_);
    return by_callee_[callee].next;
  }
  size_t failed(int callee) {
    std::lock_guard lock(mutex_);
    return by_callee_[callee].failed.size();
  }
  /// What is wrong between this book and the callee's; empty if nothing is.
  std::string audit(int callee, const Ran& there) {
    std::lock_guard lock(mutex_);
    const Entry& here = by_callee_[callee];
    std::string wrong;
    if (there.doubled > 0) wrong += std::to_string(there.doubled) + " calls ran twice; ";
    std::map<uint64_t, bool> not_run = here.failed;
    for (const uint64_t number : there.missing) {
      if (here.failed.count(number) == 0)
        wrong += "call " + std::to_string(number) + " succeeded and did not run; ";
      not_run.erase(number);
    }
    for (const auto& [number, may_have_run] : not_run) {
      if (!may_have_run)
        wrong += "call " + std::to_string(number) + " ran and its error denies it; ";
    }
    return wrong;
  }

 private:
  struct Entry {
    uint64_t next = 0;
    std::map<uint64_t, bool> failed;  // whether the call may have run
  };
  std::mutex mutex_;
  std::map<int, Entry> by_callee_;
};

}  // namespace weft::soak
