// The memory of this process that its neighbours on the host can use.
//
// The bytes of a large tensor that goes to a neighbour are copied into the arena, unless they lie
// there, and lent: the neighbour has the arena mapped and uses them in place, until it drops its
// tensor or dies. An arena is reserved as one range of addresses and mapped as a whole by every
// neighbour, once; memory is used as far as it is written to. Nothing that is kept here to manage
// it can be reached by neighbours.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>

#include "arena/borrower.h"
#include "arena/extents.h"
#include "arena/loans.h"
#include "base/mutex.h"
#include "transport/shm/shared_memory.h"

namespace weft::arena {

/// How an arena is laid out; docs/wire_protocol.md.
struct ArenaLayout {
  static constexpr uint64_t kMagic = 0x316e'6572'6174'6677;
  static constexpr size_t kDataStart = 512 * 1024;
  /// No arena is larger: every neighbour maps it.
  static constexpr size_t kMostBytes = size_t{64} << 30;

  std::atomic<uint64_t> magic;
  alignas(4096) LoanTable loans;
};
static_assert(sizeof(ArenaLayout) <= ArenaLayout::kDataStart);

/// All methods: any thread.
class Arena {
 public:
  /// This process's own, which is made here and stays until the process ends; null if the system
  /// has no memory of this kind. A forked child has one of its own.
  static Arena* of_this_process();
  /// The same, if it was made; else null.
  static Arena* existing() noexcept;
  /// The owner of `data`, which is this process's arena or that of a process it was forked from.
  static Arena* owner_of(const void* data) noexcept;

  /// So many bytes of this process's arena may be used; at first a quarter of the host's memory.
  static void allow(size_t bytes);

  /// For tests; `bytes` is a multiple of Extents::kChunk. Throws kUnavailable.
  Arena(size_t bytes, size_t allowed);

  /// Memory that is not initialised; none if the limit is reached. It may outlive no arena but
  /// of_this_process().
  c10::DataPtr allocate(size_t bytes);
  /// Frees what allocate() gave.
  static void free(void* data);

  bool contains(const void* data) const noexcept {
    const auto* at = static_cast<const std::byte*>(data);
    return at >= memory_.data() && at < memory_.data() + memory_.size();
  }
  /// Whether at least half of the memory that would be lent is asked for.
  bool is_worth_lending(const void* data, size_t bytes) const;

  const transport::PrivateDescriptor& descriptor() const { return memory_.descriptor(); }
  /// The same, for a new neighbour: says anew that this is an arena, over which another neighbour
  /// may have written.
  const transport::PrivateDescriptor& descriptor_for_neighbour();

  /// A line is what loans are offered over, a connection, which may break.
  uint64_t begin_line(pid_t borrower);
  /// What was offered over it and not taken is not lent any more.
  void end_line(uint64_t line);

  struct Offer {
    LoanTicket loan = 0;
    uint64_t offset = 0;  // of the data
  };
  /// Lends the `bytes` bytes at `data`, which lie in memory that allocate() gave. Nothing: there
  /// are too many loans.
  std::optional<Offer> lend(const void* data, size_t bytes, uint64_t line);

  /// Bytes that were offered over the line and that nobody has taken yet.
  size_t untaken_bytes(uint64_t line);

  enum class Tidied { kWholly, kInPart };
  /// Ends the loans of dead processes, and gives pages that were not used since the last call back
  /// to the system. kInPart: a later call may give back more, because something is lent or pages
  /// were used since the last call.
  Tidied tidy();

  struct Usage {
    size_t used_bytes = 0;
    size_t loans = 0;
    size_t borrowers = 0;
  };
  Usage usage();

 private:
  struct Offered {
    uint32_t loan;
    uint64_t offer;
    size_t bytes;
  };
  struct Line {
    std::shared_ptr<Borrower> borrower;
    size_t loans = 0;  // that are not over
    bool ended = false;
    std::deque<Offered> untaken;  // oldest first; the borrower takes them about in this order
    size_t untaken_bytes = 0;
  };
  struct Loan {
    size_t start = 0;  // of the block
    uint64_t line = 0;
    uint64_t offer = 0;  // counts them all: numbers of loans are used again
  };

  void say_what_it_is();
  bool give_back_some_pages();
  bool is_forked_copy() const { return fork_depth_ != base::fork_depth(); }
  ArenaLayout& layout() { return *reinterpret_cast<ArenaLayout*>(memory_.data()); }
  bool is_untaken(const Offered& offered) const WEFT_REQUIRES(mutex_);
  void collect() WEFT_REQUIRES(mutex_);
  void end_loans_of_dead() WEFT_REQUIRES(mutex_);
  void finish_loan(uint32_t loan) WEFT_REQUIRES(mutex_);
  void forget_line_if_over(uint64_t line) WEFT_REQUIRES(mutex_);
  void drop_holder(size_t start) WEFT_REQUIRES(mutex_);

  static std::unique_ptr<Arena> reserve(size_t bytes);
  Arena(size_t bytes, std::optional<size_t> own_limit);
  size_t allowed() const;

  const std::optional<size_t> own_limit_;  // else that of the process
  transport::SharedMemory memory_;
  const uint32_t fork_depth_ = base::fork_depth();
  Arena* previous_ = nullptr;  // of the process that this one was forked from

  mutable base::Mutex mutex_;
  Extents extents_ WEFT_GUARDED_BY(mutex_);  // without ArenaLayout::kDataStart
  // By the start of a block: the tensor that uses it here, and loans.
  std::unordered_map<size_t, uint32_t> holders_ WEFT_GUARDED_BY(mutex_);
  Lender lender_ WEFT_GUARDED_BY(mutex_);
  std::vector<Loan> loans_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Line> lines_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_line_ WEFT_GUARDED_BY(mutex_) = 1;
  uint64_t offers_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::arena
