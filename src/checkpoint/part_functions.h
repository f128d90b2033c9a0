// The functions that every worker runs for a checkpoint of another worker's: it writes its own
// part, or reads its file once, compares the entries with its modules and optimizers, and loads
// them.
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

/// The contents of a worker's part, and its place.
struct PartOrder {
  std::string directory;
  uint64_t number = 0;
  uint64_t save = 0;  // of this attempt
  std::vector<std::pair<std::string, RRef<nn::HostedModule>>> modules;
  std::vector<std::pair<std::string, RRef<optim::OwnerOptimizer>>> optimizers;
  std::vector<Entry> entries;  // of the worker that saves: as they are
};

struct PartReport {
  PartSeal seal;
  rpc::Complaint complaint;
};

/// A part whose file was read, and found to be as it was sealed. The worker that loads has
/// references to the parts of all workers; when the references go, so does the memory, also if that
/// worker dies.
class ReadPart {
 public:
  /// Throws kStorageFailed.
  ReadPart(PartOrder order, const PartSeal& seal);

  /// Throws kInvalidArgument if it does not fit what this worker has.
  void check() const;
  /// Checks, then loads.
  void load() const;
  /// The entries of the worker itself, and of the worker that saved.
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
/// Removes what there is of checkpoints other than these, up to the last of them.
void keep_only(std::string directory, std::vector<uint64_t> numbers);
/// Removes what an attempt to save has left.
void discard(std::string directory, uint64_t number, uint64_t save);

}  // namespace weft::checkpoint
