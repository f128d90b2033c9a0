// SPDX-License-Identifier: BSD-3-Clause
#include "arena/foreign_arena.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/mutex.h"
#include "weft/codec.h"

namespace weft::arena {

namespace {

std::atomic<bool> mappable{true};

transport::SharedMemory adopt(const transport::PrivateDescriptor& descriptor, size_t bytes) {
  try {
    return transport::SharedMemory::adopt(descriptor, bytes, transport::InForkedChild::kMapped);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnavailable) mappable = false;
    throw;
  }
}

}  // namespace

// Those that are mapped now. Not destroyed: tensors may be freed at the very end.
class ForeignArena::Mapped {
 public:
  static Mapped& all() {
    static auto* const mapped = new Mapped;
    return *mapped;
  }
  base::Mutex mutex;
  std::map<Identity, std::weak_ptr<ForeignArena>> arenas WEFT_GUARDED_BY(mutex);
};

struct ForeignArena::Borrowed {
  std::shared_ptr<ForeignArena> arena;
  LoanTicket loan;
};

std::shared_ptr<ForeignArena> ForeignArena::map(const transport::PrivateDescriptor& descriptor) {
  struct stat status {};
  // The seals first: only memory has them, and of another file fstat() may take its time.
  if (!descriptor || fcntl(descriptor.get(), F_GET_SEALS) < 0 ||
      fstat(descriptor.get(), &status) != 0) {
    Decoder::fail("a tensor in an arena that was not handed over");
  }
  const Identity identity{status.st_dev, status.st_ino};
  Mapped& mapped = Mapped::all();
  // Both are destroyed without the lock, which the destructor takes.
  std::unique_ptr<ForeignArena> made;
  std::shared_ptr<ForeignArena> arena;
  const base::MutexLock lock(mapped.mutex);
  if (const auto known = mapped.arenas.find(identity); known != mapped.arenas.end()) {
    arena = known->second.lock();
    if (arena) return arena;
  }
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes <= ArenaLayout::kDataStart || bytes > ArenaLayout::kMostBytes)
    Decoder::fail(fmt::format("an arena of {} bytes", bytes));
  transport::SharedMemory memory = adopt(descriptor, bytes);
  const auto& layout = *reinterpret_cast<const ArenaLayout*>(memory.data());
  if (layout.magic.load(std::memory_order_acquire) != ArenaLayout::kMagic)
    Decoder::fail("memory that is no arena");
  std::weak_ptr<ForeignArena>& entry = mapped.arenas[identity];
  made.reset(new ForeignArena(std::move(memory), identity));
  arena = std::move(made);
  entry = arena;
  return arena;
}

bool ForeignArena::can_be_mapped() { return mappable.load(std::memory_order_relaxed); }

ForeignArena::~ForeignArena() {
  if (fork_depth_ != base::fork_depth()) return;
  Mapped& mapped = Mapped::all();
  const base::MutexLock lock(mapped.mutex);
  // Somebody may have mapped it anew since the last owner went.
  const auto found = mapped.arenas.find(identity_);
  if (found != mapped.arenas.end() && found->second.expired()) mapped.arenas.erase(found);
}

c10::DataPtr ForeignArena::take(LoanTicket loan, uint64_t offset, size_t bytes) {
  if (offset < ArenaLayout::kDataStart || offset > memory_.size() ||
      bytes > memory_.size() - offset) {
    Decoder::fail(
        fmt::format("a tensor at {} + {} in an arena of {} bytes", offset, bytes, memory_.size()));
  }
  auto borrowed = std::make_unique<Borrowed>(Borrowed{shared_from_this(), loan});
  if (!take_loan(layout().loans, loan))
    Decoder::fail(fmt::format(
        "a tensor with the loan {}, which is not offered (any more: a sender that sees its "
        "connection end takes its offers back)",
        loan));
  return {memory_.data() + offset, borrowed.release(), &give_back,
          c10::Device(c10::DeviceType::CPU)};
}

void ForeignArena::give_back(void* context) {
  const std::unique_ptr<Borrowed> borrowed(static_cast<Borrowed*>(context));
  // In a forked child nothing is given back: the parent still has it.
  if (borrowed->arena->fork_depth_ != base::fork_depth()) return;
  give_back_loan(borrowed->arena->layout().loans, borrowed->loan);
}

}  // namespace weft::arena
