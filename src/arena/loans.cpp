// SPDX-License-Identifier: BSD-3-Clause
#include "arena/loans.h"

#include "base/room.h"

namespace weft::arena {

namespace {
constexpr uint32_t number_of(LoanState state) { return static_cast<uint32_t>(state); }

bool change(std::atomic<uint32_t>& state, LoanState from, LoanState to) {
  uint32_t expected = number_of(from);
  return state.compare_exchange_strong(expected, number_of(to), std::memory_order_acq_rel,
                                       std::memory_order_acquire);
}
}  // namespace

std::optional<uint32_t> Lender::offer() {
  uint32_t loan;
  if (!numbers_.empty()) {
    loan = numbers_.back();
    numbers_.pop_back();
  } else if (lent_.size() < LoanTable::kLoans) {
    loan = limit();
    // Room for all, so that a loan that ends needs no memory.
    base::make_room(numbers_, loan + size_t{1});
    lent_.push_back(false);
  } else {
    return std::nullopt;
  }
  lent_[loan] = true;
  table_.states[loan].store(number_of(LoanState::kOffered), std::memory_order_release);
  return loan;
}

bool Lender::is_offered(uint32_t loan) const {
  return table_.states[loan].load(std::memory_order_relaxed) == number_of(LoanState::kOffered);
}

bool Lender::withdraw(uint32_t loan) {
  if (!change(table_.states[loan], LoanState::kOffered, LoanState::kNone)) return false;
  forget(loan);
  return true;
}

void Lender::end(uint32_t loan) {
  table_.states[loan].store(number_of(LoanState::kNone), std::memory_order_release);
  forget(loan);
}

bool Lender::finish_returned(uint32_t loan) {
  if (!is_lent(loan)) return false;
  if (!change(table_.states[loan], LoanState::kReturned, LoanState::kNone)) return false;
  forget(loan);
  return true;
}

void Lender::forget(uint32_t loan) {
  lent_[loan] = false;
  numbers_.push_back(loan);
}

bool take_loan(LoanTable& table, uint32_t loan) {
  return loan < LoanTable::kLoans &&
         change(table.states[loan], LoanState::kOffered, LoanState::kTaken);
}

// The part of the set comes last: a lender that finds it finds the rest.
void give_back_loan(LoanTable& table, uint32_t loan) {
  table.states[loan].store(number_of(LoanState::kReturned), std::memory_order_release);
  const size_t word = loan / 64;
  table.returned[word].fetch_or(uint64_t{1} << (loan % 64), std::memory_order_release);
  table.returned_parts[word / 64].fetch_or(uint64_t{1} << (word % 64), std::memory_order_release);
}

}  // namespace weft::arena
