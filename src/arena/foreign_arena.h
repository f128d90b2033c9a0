// The arena of a neighbour, mapped here.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

#include "arena/arena.h"
#include "transport/private_descriptor.h"
#include "transport/shm/shared_memory.h"

namespace weft::arena {

/// Lives as long as a connection to the neighbour or memory from its arena, also when the neighbour
/// is dead.
class ForeignArena : public std::enable_shared_from_this<ForeignArena> {
 public:
  /// Maps it, unless it is mapped already. Throws kBadMessage if the descriptor is none of an
  /// arena, kUnavailable if it cannot be mapped. Any thread.
  static std::shared_ptr<ForeignArena> map(const transport::PrivateDescriptor& descriptor);
  /// Whether all arenas could be mapped so far. Otherwise peers that connect are told that this
  /// process can map none.
  static bool can_be_mapped();
  ~ForeignArena();

  /// The memory of a loan, which goes back to its lender when it is freed, on whatever thread.
  /// Throws kBadMessage unless the loan was offered and the bytes lie in the arena.
  c10::DataPtr take(LoanTicket loan, uint64_t offset, size_t bytes);

 private:
  struct Identity {
    uint64_t device, file;
    friend auto operator<=>(const Identity&, const Identity&) = default;
  };
  class Mapped;
  struct Borrowed;
  ForeignArena(transport::SharedMemory memory, Identity identity)
      : memory_(std::move(memory)), identity_(identity) {}
  static void give_back(void* context);
  ArenaLayout& layout() { return *reinterpret_cast<ArenaLayout*>(memory_.data()); }

  const transport::SharedMemory memory_;
  const Identity identity_;
  const uint32_t fork_depth_ = base::fork_depth();
};

}  // namespace weft::arena
