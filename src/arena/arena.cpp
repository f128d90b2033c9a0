// SPDX-License-Identifier: BSD-3-Clause
#include "arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "weft/error.h"

namespace weft::arena {

namespace {

std::atomic<Arena*> newest{nullptr};

constexpr size_t kLeastReserved = size_t{256} << 20;

// Pages are given back under the lock that allocating and lending want: so many at a time.
constexpr size_t kMostPagesAtOnce = size_t{32} << 20;
constexpr auto kPauseForOthers = std::chrono::microseconds(100);

// A process that writes a larger file than it may is killed, and one whose address space is limited
// needs it for other things.
size_t reserved_bytes() {
  rlimit file{RLIM_INFINITY, 0}, addresses{RLIM_INFINITY, 0};
  getrlimit(RLIMIT_FSIZE, &file);
  getrlimit(RLIMIT_AS, &addresses);
  const size_t most =
      std::min<size_t>({ArenaLayout::kMostBytes, file.rlim_cur, addresses.rlim_cur / 16});
  return most / Extents::kChunk * Extents::kChunk;
}

std::atomic<size_t>& process_limit() {
  static std::atomic<size_t> limit{static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 4 *
                                   static_cast<size_t>(sysconf(_SC_PAGESIZE))};
  return limit;
}

Extents extents_of(size_t bytes) {
  Extents extents(bytes);
  extents.allocate(ArenaLayout::kDataStart);  // stays used
  return extents;
}

}  // namespace

Arena* Arena::of_this_process() {
  Arena* arena = newest.load(std::memory_order_acquire);
  if (arena && !arena->is_forked_copy()) return arena;
  static std::atomic<bool> impossible{false};
  if (impossible.load(std::memory_order_relaxed)) return nullptr;
  try {
    // No lock: a forked child might have it for ever.
    std::unique_ptr<Arena> made = reserve(reserved_bytes());
    made->previous_ = arena;
    if (newest.compare_exchange_strong(arena, made.get(), std::memory_order_acq_rel))
      return made.release();
    return arena;  // another thread was faster
  } catch (const Error& error) {
    impossible = true;
    base::log(LogLevel::kWarning, "weft",
              "large tensors go to other processes of this host through smaller buffers: {}",
              error.message());
    return nullptr;
  }
}

// As much as the system lets a process map, if that is not all.
std::unique_ptr<Arena> Arena::reserve(size_t bytes) {
  for (;; bytes = bytes / 2 / Extents::kChunk * Extents::kChunk) {
    try {
      return std::unique_ptr<Arena>(new Arena(bytes, std::nullopt));
    } catch (const Error&) {
      if (bytes / 2 < kLeastReserved) throw;
    }
  }
}

Arena* Arena::existing() noexcept {
  Arena* arena = newest.load(std::memory_order_acquire);
  return arena && !arena->is_forked_copy() ? arena : nullptr;
}

Arena* Arena::owner_of(const void* data) noexcept {
  Arena* arena = newest.load(std::memory_order_acquire);
  while (arena && !arena->contains(data)) arena = arena->previous_;
  return arena;
}

Arena::Arena(size_t bytes, size_t allowed) : Arena(bytes, std::optional(allowed)) {}

Arena::Arena(size_t bytes, std::optional<size_t> own_limit)
    : own_limit_(own_limit),
      memory_(transport::SharedMemory::create(bytes, transport::InForkedChild::kMapped)),
      extents_(extents_of(bytes)),
      lender_(layout().loans) {
  say_what_it_is();
}

void Arena::say_what_it_is() {
  layout().magic.store(ArenaLayout::kMagic, std::memory_order_release);
}

const transport::PrivateDescriptor& Arena::descriptor_for_neighbour() {
  say_what_it_is();
  return descriptor();
}

void Arena::allow(size_t bytes) { process_limit().store(bytes, std::memory_order_relaxed); }

size_t Arena::allowed() const {
  return own_limit_.value_or(process_limit().load(std::memory_order_relaxed));
}

// --- memory ----------------------------------------------------------------------------------

c10::DataPtr Arena::allocate(size_t bytes) {
  if (is_forked_copy()) return {};
  const base::MutexLock lock(mutex_);
  collect();
  const size_t limit = allowed();
  const auto is_allowed = [this, limit, wanted = Extents::rounded(bytes)]() WEFT_REQUIRES(mutex_) {
    const size_t used = extents_.used() - ArenaLayout::kDataStart;
    return used < limit && limit - used >= wanted;
  };
  if (!is_allowed()) {
    end_loans_of_dead();
    if (!is_allowed()) return {};
  }
  const std::optional<Extent> extent = extents_.allocate(bytes);
  if (!extent) return {};
  try {
    holders_.emplace(extent->start, 1);
  } catch (...) {  // no memory
    extents_.free(extent->start);
    throw;
  }
  void* data = memory_.data() + extent->start;
  return {data, data, &Arena::free, c10::Device(c10::DeviceType::CPU)};
}

void Arena::free(void* data) {
  Arena* arena = owner_of(data);
  if (!arena || arena->is_forked_copy()) return;
  const base::MutexLock lock(arena->mutex_);
  arena->drop_holder(static_cast<size_t>(static_cast<std::byte*>(data) - arena->memory_.data()));
}

void Arena::drop_holder(size_t start) {
  const auto found = holders_.find(start);
  if (--found->second > 0) return;
  holders_.erase(found);
  extents_.free(start);
}

bool Arena::is_worth_lending(const void* data, size_t bytes) const {
  const base::MutexLock lock(mutex_);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(data) - memory_.data());
  const std::optional<Extent> block = extents_.find(offset);
  return block && bytes <= block->end() - offset && bytes >= block->bytes / 2;
}

// --- loans -----------------------------------------------------------------------------------

uint64_t Arena::begin_line(pid_t process) {
  const base::MutexLock lock(mutex_);
  std::shared_ptr<Borrower> borrower;
  for (auto& [number, line] : lines_) {
    if (line.borrower->process() == process && !line.borrower->is_dead()) borrower = line.borrower;
  }
  if (!borrower) borrower = std::make_shared<Borrower>(process);
  lines_[next_line_].borrower = std::move(borrower);
  return next_line_++;
}

void Arena::end_line(uint64_t number) {
  if (is_forked_copy()) return;
  const base::MutexLock lock(mutex_);
  collect();
  Line& line = lines_.at(number);
  line.ended = true;
  for (uint32_t loan = 0; loan < lender_.limit() && line.loans > 0; ++loan) {
    if (!lender_.is_lent(loan) || loans_[loan].line != number || !lender_.withdraw(loan)) continue;
    --line.loans;
    drop_holder(loans_[loan].start);
  }
  forget_line_if_over(number);
}

std::optional<Arena::Offer> Arena::lend(const void* data, size_t bytes, uint64_t number) {
  const base::MutexLock lock(mutex_);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(data) - memory_.data());
  const std::optional<Extent> block = extents_.find(offset);
  if (!block) return std::nullopt;
  Line& line = lines_.at(number);
  // What may throw comes before the offer.
  uint32_t& holders = holders_.at(block->start);
  if (loans_.size() <= lender_.limit()) loans_.resize(lender_.limit() + 1);
  line.untaken.push_back({0, ++offers_, bytes});
  std::optional<uint32_t> loan;
  try {
    loan = lender_.offer();
  } catch (...) {  // no memory
    line.untaken.pop_back();
    throw;
  }
  if (!loan) {
    line.untaken.pop_back();
    return std::nullopt;
  }
  line.untaken.back().loan = *loan;
  line.untaken_bytes += bytes;
  loans_[*loan] = {block->start, number, offers_};
  ++line.loans;
  ++holders;
  return Offer{lender_.ticket(*loan), offset};
}

size_t Arena::untaken_bytes(uint64_t number) {
  const base::MutexLock lock(mutex_);
  Line& line = lines_.at(number);
  while (!line.untaken.empty() && !is_untaken(line.untaken.front())) {
    line.untaken_bytes -= line.untaken.front().bytes;
    line.untaken.pop_front();
  }
  return line.untaken_bytes;
}

bool Arena::is_untaken(const Offered& offered) const {
  return loans_[offered.loan].offer == offered.offer && lender_.is_offered(offered.loan);
}

void Arena::collect() {
  // Called before collect() returns, and so with the lock.
  lender_.collect([this](uint32_t loan) WEFT_UNCHECKED_LOCKING { finish_loan(loan); });
}

void Arena::finish_loan(uint32_t loan) {
  const Loan over = loans_[loan];
  --lines_.at(over.line).loans;
  drop_holder(over.start);
  forget_line_if_over(over.line);
}

void Arena::end_loans_of_dead() {
  std::vector<uint64_t> dead;
  for (auto& [number, line] : lines_) {
    if (line.loans > 0 && line.borrower->is_dead()) dead.push_back(number);
  }
  if (dead.empty()) return;
  collect();  // what they gave back while they lived
  for (uint32_t loan = 0; loan < lender_.limit(); ++loan) {
    if (!lender_.is_lent(loan) ||
        std::find(dead.begin(), dead.end(), loans_[loan].line) == dead.end()) {
      continue;
    }
    lender_.end(loan);
    finish_loan(loan);
  }
}

void Arena::forget_line_if_over(uint64_t number) {
  const auto found = lines_.find(number);
  if (found->second.ended && found->second.loans == 0) lines_.erase(found);
}

Arena::Tidied Arena::tidy() {
  if (is_forked_copy()) return Tidied::kWholly;
  {
    const base::MutexLock lock(mutex_);
    collect();
    end_loans_of_dead();
  }
  while (give_back_some_pages()) std::this_thread::sleep_for(kPauseForOthers);
  const base::MutexLock lock(mutex_);
  extents_.end_period();
  const bool lends = std::any_of(lines_.begin(), lines_.end(),
                                 [](const auto& each) { return each.second.loans > 0; });
  return lends || extents_.may_go_stale() ? Tidied::kInPart : Tidied::kWholly;
}

// Under the lock, so that nobody is given them meanwhile. False: there are no more.
bool Arena::give_back_some_pages() {
  const base::MutexLock lock(mutex_);
  size_t bytes = 0;
  for (const Extent& stale : extents_.take_stale(kMostPagesAtOnce)) {
    fallocate(memory_.descriptor().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(stale.start), static_cast<off_t>(stale.bytes));
    bytes += stale.bytes;
  }
  return bytes == kMostPagesAtOnce;
}

Arena::Usage Arena::usage() {
  const base::MutexLock lock(mutex_);
  collect();
  Usage usage;
  usage.used_bytes = extents_.used() - ArenaLayout::kDataStart;
  for (const auto& [number, line] : lines_) usage.loans += line.loans;
  usage.borrowers = lines_.size();
  return usage;
}

}  // namespace weft::arena
