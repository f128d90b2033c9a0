// Loans: memory of one process that others use for a while.
//
// The lender numbers its loans. For each number there is a state in memory that lender and
// borrowers share:
//
//   kNone -- lender: offer --> kOffered -- borrower: take --> kTaken -- borrower: give back -->
//   kReturned -- lender: collect --> kNone
//
// A lender that does not want to wait for somebody to take an offer (its connection is broken)
// withdraws it: kOffered -> kNone. Of the two, take and withdraw, exactly one succeeds. Of a
// borrower that has died the lender ends all loans.
//
// A borrower that gives back marks the number in a set of bits, and the part of the set in a second
// set, so that the lender finds it without looking through all numbers.
//
// Numbers are used again. A ticket is a number with a count of its uses; the shared state has the
// count too, so that a borrower that comes late to an old offer does not take a new one.
//
// The lender keeps for itself which numbers are lent, and believes the shared states only where
// they fit: whoever writes nonsense there ends loans early, or never, and nothing else.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::arena {

enum class LoanState : uint32_t { kNone = 0, kOffered = 1, kTaken = 2, kReturned = 3 };

/// What lender and borrowers share. All zeros when it is new.
struct LoanTable {
  static constexpr uint32_t kLoans = 64 * 1024;

  std::atomic<uint32_t> states[kLoans];                    // the count, then two bits: LoanState
  std::atomic<uint64_t> returned[kLoans / 64];             // one bit for each loan
  std::atomic<uint64_t> returned_parts[kLoans / 64 / 64];  // one bit for each word of `returned`
};

/// What a borrower is told of a loan: the number, and from bit 16 on the count of its uses.
using LoanTicket = uint32_t;
static_assert(LoanTable::kLoans == 1 << 16);

/// The lender's side. One thread at a time. `loan` is a number.
class Lender {
 public:
  explicit Lender(LoanTable& table) : table_(table) {}

  /// The number of a new loan; nothing if there are kLoans.
  std::optional<uint32_t> offer();
  LoanTicket ticket(uint32_t loan) const { return uint32_t{uses_[loan]} << 16 | loan; }
  /// Whether nobody has taken the offer, and nobody can any more. Then the loan is over.
  bool withdraw(uint32_t loan);
  /// Its borrower is dead.
  void end(uint32_t loan);
  /// Whether nobody has taken it.
  bool is_offered(uint32_t loan) const;
  bool is_lent(uint32_t loan) const { return loan < lent_.size() && lent_[loan]; }
  /// All numbers are smaller.
  uint32_t limit() const { return static_cast<uint32_t>(lent_.size()); }

  /// Calls `over(loan)` for each loan that was given back.
  template <typename F>
  void collect(const F& over) {
    for (size_t part = 0; part < std::size(table_.returned_parts); ++part) {
      uint64_t words = take_bits(table_.returned_parts[part]);
      for (; words != 0; words &= words - 1) {
        const size_t word = part * 64 + static_cast<size_t>(__builtin_ctzll(words));
        uint64_t bits = take_bits(table_.returned[word]);
        for (; bits != 0; bits &= bits - 1) {
          const auto loan =
              static_cast<uint32_t>(word * 64) + static_cast<uint32_t>(__builtin_ctzll(bits));
          if (finish_returned(loan)) over(loan);
        }
      }
    }
  }

 private:
  static uint64_t take_bits(std::atomic<uint64_t>& word) {
    return word.load(std::memory_order_relaxed) == 0 ? 0
                                                     : word.exchange(0, std::memory_order_acquire);
  }
  bool finish_returned(uint32_t loan);
  void forget(uint32_t loan);

  LoanTable& table_;
  std::vector<bool> lent_;
  std::vector<uint16_t> uses_;     // by number: how often it was used again
  std::vector<uint32_t> numbers_;  // that can be used again
};

/// The borrower's side, for the thread that receives the offer.
bool take_loan(LoanTable& table, LoanTicket ticket);
/// Any thread; once for each loan that was taken. The memory is not used any more.
void give_back_loan(LoanTable& table, LoanTicket ticket);

}  // namespace weft::arena
