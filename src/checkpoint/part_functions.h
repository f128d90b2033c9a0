// What workers do for a checkpoint of another worker's: each writes, checks and loads its own part.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/part_file.h"
#include "optim/owner_optimizer.h"
#include "rpc/complaint.h"
#include "weft/nn.h"
#include "weft/rref.h"

namespace weft::checkpoint {

/// What belongs into a worker's part, and where that is.
struct PartOrder {
  std::string directory;
  uint64_t number = 0;
  uint64_t save = 0;  // of this attempt
  std::vector<std::pair<std::string, RRef<nn::HostedModule>>> modules;
  std::vector<std::pair<std::string, RRef<optim::OwnerOptimizer>>> optimizers;
  std::vector<Entry> entries;  // of whoever saves: as they are
};

struct PartReport {
  PartSeal seal;
  rpc::Complaint complaint;
};

PartReport write_part(PartOrder order);
/// Everything load_part does but changing anything.
rpc::Complaint check_part(PartOrder order, PartSeal seal);
rpc::Complaint load_part(PartOrder order, PartSeal seal);
/// What write_part was given as it is.
std::vector<Entry> read_entries(const std::string& part, const PartSeal& seal);
/// Removes what there is of checkpoints other than these, up to the last of them.
void keep_only(std::string directory, std::vector<uint64_t> numbers);
/// Removes what an attempt to save has left.
void discard(std::string directory, uint64_t number, uint64_t save);

}  // namespace weft::checkpoint
