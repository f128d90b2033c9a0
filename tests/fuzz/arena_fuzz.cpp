// An arena and a neighbour that writes anything into its table of loans, and says anything about
// places: what is taken lies in the arena, what the owner counts stays right, and everything can be
// used again in the end.
//
// Input: records of u8 what, u32 number, u64 offset, u32 size.
// SPDX-License-Identifier: BSD-3-Clause
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "arena/arena.h"
#include "arena/foreign_arena.h"
#include "weft/error.h"

namespace weft::arena {
namespace {

constexpr size_t kMost = 8 << 20;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Record {
  uint8_t what;
  uint32_t number;
  uint64_t offset;
  uint32_t size;

  static constexpr size_t kBytes = 17;
  explicit Record(const uint8_t* data) {
    what = data[0];
    std::memcpy(&number, data + 1, 4);
    std::memcpy(&offset, data + 5, 8);
    std::memcpy(&size, data + 13, 4);
  }
};

// What the neighbour has mapped.
LoanTable& table_of(const Arena& arena) {
  static const auto memory = transport::SharedMemory::adopt(
      arena.descriptor(), static_cast<size_t>(lseek(arena.descriptor().get(), 0, SEEK_END)));
  return reinterpret_cast<ArenaLayout*>(memory.data())->loans;
}

// As large as files may be.
Arena& small_arena() {
  constexpr rlim_t kBytes = 512 << 20;
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min(limit.rlim_cur, kBytes);
  require(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  return *Arena::of_this_process();
}

class Scene {
 public:
  explicit Scene(Arena& arena) : arena_(arena), line_(arena.begin_line(getpid())) {}

  void play(const Record& record) {
    switch (record.what % 8) {
      case 0: {
        c10::DataPtr memory = arena_.allocate(1 + record.size % kMost);
        if (memory) own_.push_back(std::move(memory));
        return;
      }
      case 1:
        if (!own_.empty()) own_.erase(own_.begin() + record.number % own_.size());
        return;
      case 2:
        if (own_.empty()) return;
        offer_ = arena_.lend(own_[record.number % own_.size()].get(), 1, line_);
        return;
      case 3:
        if (offer_) take(offer_->loan, offer_->offset, 1);
        return;
      case 4:
        return take(record.number, record.offset, record.size);
      case 5:
        if (!taken_.empty()) taken_.erase(taken_.begin() + record.number % taken_.size());
        return;
      case 6: {
        auto* words = reinterpret_cast<std::atomic<uint32_t>*>(&table_);
        const size_t word = record.offset % (sizeof(LoanTable) / 4);
        words[record.number & 1 ? word : word % 64] = record.size;
        return;
      }
      case 7:
        arena_.tidy();
        arena_.end_line(line_);
        line_ = arena_.begin_line(getpid());
        return;
    }
  }

  void finish() {
    own_.clear();
    taken_.clear();
    arena_.end_line(line_);
    // A neighbour that now gives back everything leaves nothing lent. The first numbers come first,
    // and mostly suffice.
    uint32_t loan = 0;
    for (const uint32_t until : {uint32_t{64}, uint32_t{1024}, LoanTable::kLoans}) {
      if (arena_.usage().loans == 0) break;
      for (; loan < until; ++loan) give_back(loan);
    }
    const Arena::Usage usage = arena_.usage();
    require(usage.used_bytes == 0 && usage.loans == 0 && usage.borrowers == 0);
  }

 private:
  void give_back(uint32_t loan) {
    table_.states[loan] = static_cast<uint32_t>(LoanState::kReturned);
    table_.returned[loan / 64] |= uint64_t{1} << (loan % 64);
    table_.returned_parts[loan / 64 / 64] |= uint64_t{1} << (loan / 64 % 64);
  }
  void take(uint32_t loan, uint64_t offset, size_t bytes) {
    try {
      c10::DataPtr memory = theirs_->take(loan, offset, bytes);
      if (bytes > 0) {
        auto* at = static_cast<volatile char*>(memory.get());
        (void)at[0];
        (void)at[bytes - 1];
      }
      taken_.push_back(std::move(memory));
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kBadMessage);
    }
  }

  Arena& arena_;
  LoanTable& table_ = table_of(arena_);
  uint64_t line_;
  const std::shared_ptr<ForeignArena> theirs_ = ForeignArena::map(arena_.descriptor());
  std::vector<c10::DataPtr> own_, taken_;
  std::optional<Arena::Offer> offer_;
};

}  // namespace
}  // namespace weft::arena

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::arena;
  static Arena& arena = small_arena();
  // Mapped once: mapping takes longer than an input.
  static const std::shared_ptr<ForeignArena> mapped = ForeignArena::map(arena.descriptor());
  Scene scene(arena);
  for (; size >= Record::kBytes; data += Record::kBytes, size -= Record::kBytes)
    scene.play(Record(data));
  scene.finish();
  return 0;
}
