// Workers that send each other tensors until they are told to stop, whatever happens to one of
// them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "exchange.h"
#include "weft/agent.h"

namespace weft::neighbours {

constexpr int kSendingWorkers = 3;

/// Tells the senders of this process to stop, or lets new ones go on. The first one is a function
/// to call.
void stop_senders();
void allow_senders();

/// A thread for each other worker sends to it until the worker is lost or all are told to stop.
class Senders {
 public:
  Senders(Agent& agent, int rank, uint64_t seed, Tally& tally);
  ~Senders();
  Senders(const Senders&) = delete;
  Senders& operator=(const Senders&) = delete;

 private:
  std::vector<std::thread> threads_;
};

/// Nothing was wrong, strange or too late.
bool is_good(const Tally& tally);

/// "senders FILE RANK SEED": what a process other than the first one does. It stops when it is told
/// to or gets SIGUSR1, and reports "good" or what was not.
void run_sender(const std::string& arguments);

}  // namespace weft::neighbours
