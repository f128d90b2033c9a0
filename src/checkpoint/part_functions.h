// The functions that a Checkpoint calls on all workers. Each worker writes its own part; or it
// reads its part's file once, checks that it fits its modules and optimizers, and loads it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/part_contents.h"
#include "checkpoint/part_file.h"
#include "optim/owner_optimizer.h"
#include "rpc/complaint.h"
#include "weft/nn.h"
#include "weft/rref.h"

namespace weft::checkpoint {

/// Tells a worker what belongs into its part, and where its file is.
struct PartOrder {
  std::string directory;
  uint64_t number = 0;
  uint64_t save = 0;  // the number of this attempt
  std::vector<std::pair<std::string, RRef<nn::HostedModule>>> modules;
  std::vector<std::pair<std::string, RRef<optim::OwnerOptimizer>>> optimizers;
  std::vector<Entry> entries;  // to be written as they are; only for the worker that saves
};

struct PartReport {
  PartSeal seal;
  rpc::Complaint complaint;
};

/// A part whose file was read and agrees with its seal. The worker that loads has references to the
/// parts of all workers. The memory is freed when the references go, also if that worker dies.
class ReadPart {
 public:
  /// Throws kStorageFailed.
  ReadPart(PartOrder order, const PartSeal& seal);

  /// Throws kInvalidArgument if the part does not fit the modules and optimizers of this worker.
  void check() const;
  /// Checks, then loads.
  void load() const;
  /// The entries that belong to no module or optimizer.
  const std::vector<Entry>& rest() const { return contents_.rest(); }

 private:
  PartOrder order_;
  Contents contents_;
};

struct PartReading {
  RRef<ReadPart> part;  // empty if there is a complaint
  rpc::Complaint complaint;
};

PartReport write_part(PartOrder order);
PartReading read_part(PartOrder order, PartSeal seal);
rpc::Complaint check_part(RRef<ReadPart> part);
rpc::Complaint load_part(RRef<ReadPart> part);
/// Removes every checkpoint in `directory` that is not in `numbers` and is older than the last of
/// them. `numbers` is ascending.
void keep_only(std::string directory, std::vector<uint64_t> numbers);
/// Removes the files that an attempt to save has left.
void discard(std::string directory, uint64_t number, uint64_t save);

}  // namespace weft::checkpoint
