// What the workers of a soak do all the time. Each load runs until `stopping`, checks every value
// it gets, and reports what is wrong to Findings.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "weft/rpc.h"

namespace weft::soak {

/// Everything that should not have happened, of this worker.
class Findings {
 public:
  void add(const std::string& what);
  size_t count() const { return count_.load(); }

 private:
  std::atomic<size_t> count_{0};
};
Findings& findings();

/// How often something was done, by name; also how often it failed as faults make it fail.
class Tally {
 public:
  void add(const std::string& what, uint64_t n = 1);
  std::map<std::string, uint64_t> counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
};
Tally& tally();

extern std::atomic<bool> stopping;

/// Whether faults may end a call like this while all workers live.
bool is_excused(const Error& error);

std::string worker_name(int rank);

void make_calls(int rank, int workers);      // numbered, and audited at the end
void make_bursts(int rank, int workers);     // the same, many at a time
void use_references(int rank, int workers);  // create, share, call, drop
void train(int rank, int workers);           // autograd, steps and checkpoints
void reduce(int rank, int workers);          // all_reduce of all workers in step

/// After all loads have ended, everywhere: what callers and callees have noted agrees.
void audit_calls(int rank, int workers);
/// How many objects that use_references() made are alive here.
int64_t objects_alive();

}  // namespace weft::soak
