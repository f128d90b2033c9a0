// Process groups of c10d's (Gloo, MPI, UCC), used by Weft: for clusters whose fabric these know
// better than TCP.
//
//   c10::intrusive_ptr<c10d::ProcessGroup> mpi = ...;
//   weft::ProcessGroup trainers = weft::wrap_group(mpi, {"trainer0", "trainer1"});
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "weft/agent.h"
#include "weft/export.h"
#include "weft/process_group.h"

namespace c10d {
class ProcessGroup;
}

namespace weft {

/// Makes a group as new_group() does, in which `group` carries all_reduce and broadcast of CPU
/// tensors for all members: of float, double, int32 and int64, over Gloo also of half, int8 and
/// uint8. All else goes over the agents' connections: other operations and types, the minimum and
/// maximum of floating point numbers (in which backends treat NaN differently), operations during
/// nn::join in which not all members take part, and what the members have to agree about. Tensors
/// on GPUs go as in every group, over NCCL; a `group` over NCCL has nothing to carry and is
/// refused.
///
/// `group` must have the same members in the same order, and nothing else may use it from now on.
/// It carries one sequence of operations: either those of the group itself on CPU tensors, or those
/// of one DistributedDataParallel of a module on the CPU, whichever comes first; that must be the
/// same one on all members. The others go over the agents' connections. Whether all members get the
/// same bits of a sum is up to `group`'s library.
///
/// Errors are those of every group, and come as soon: a member that is lost ends the operations of
/// the others, although `group` may notice nothing. What `group` reports itself is kUnavailable and
/// begins with the backend's name. `group` cannot be used after an error. If it is still at work
/// then, it works on memory of its own, and it is never destroyed, because its destructor would
/// wait.
///
/// Throws what new_group() throws, and kInvalidArgument if a member's `group` is not like the
/// others' or does not fit to `names`.
WEFT_API ProcessGroup wrap_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                 const std::vector<std::string>& names = {},
                                 const GroupOptions& options = {});
WEFT_API ProcessGroup wrap_group(Agent& agent, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                 const std::vector<std::string>& names = {},
                                 const GroupOptions& options = {});

}  // namespace weft
