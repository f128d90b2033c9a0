// The faults of a soak: connections that are killed, and workers that are frozen for a while.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <random>
#include <vector>

namespace weft::soak {

class Faults {
 public:
  /// `workers`: their processes. `self` is not frozen, since it runs this.
  Faults(std::vector<pid_t> workers, pid_t self, unsigned seed);

  /// Kills one connection between two workers: one over TCP with the kernel's help (ss -K), or one
  /// through shared memory by its socket. Needs root.
  void kill_a_connection();
  /// Freezes a worker for some time, shorter than what it would be given up after.
  void freeze_a_worker();

  uint64_t kills() const { return kills_; }
  uint64_t kills_between_neighbours() const { return kills_between_neighbours_; }
  uint64_t freezes() const { return freezes_; }

 private:
  void kill_over_tcp();
  void kill_between_neighbours();

  const std::vector<pid_t> workers_;
  const pid_t self_;
  std::mt19937 random_;
  uint64_t kills_ = 0;
  uint64_t kills_between_neighbours_ = 0;
  uint64_t freezes_ = 0;
};

}  // namespace weft::soak
