// The messages between a trainer and the owners of its parameters.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/complaint.h"
#include "weft/optim.h"
#include "weft/record.h"
#include "weft/rref.h"

namespace weft::optim {

/// The part of an optimizer that one owner is to have.
struct OwnerPlan {
  struct Group {
    Record options;
    std::vector<RRef<at::Tensor>> parameters;
  };
  std::string kind;
  Record defaults;
  std::vector<Group> groups;
};

struct StepOrder {
  uint64_t number = 0;  // grows from step to step; a step that is sent again has the same number
  int64_t context = 0;
  std::vector<Record> options;  // of each group
};

struct StepResult {
  OwnerOutcome::Applied applied = OwnerOutcome::Applied::kNo;
  uint64_t parameters = 0;
  rpc::Complaint complaint = {};
};

struct NormReply {
  double norm = 0;
  rpc::Complaint complaint = {};
};

struct ScaleOrder {
  uint64_t number = 0;  // grows from order to order, like that of a step
  int64_t context = 0;
  double factor = 1;
};

}  // namespace weft::optim
