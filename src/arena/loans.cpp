// SPDX-License-Identifier: BSD-3-Clause
#include "arena/loans.h"

#include "base/room.h"

namespace weft::arena {

namespace {

constexpr uint32_t number_of(LoanTicket ticket) { return ticket & 0xffff; }
constexpr LoanState state_of(uint32_t word) { return static_cast<LoanState>(word & 3); }
constexpr uint32_t word_of(LoanTicket ticket, LoanState state) {
  return ticket >> 16 << 2 | static_cast<uint32_t>(state);
}

bool change(LoanTable& table, LoanTicket ticket, LoanState from, LoanState to) {
  uint32_t expected = word_of(ticket, from);
  return table.states[number_of(ticket)].compare_exchange_strong(
      expected, word_of(ticket, to), std::memory_order_acq_rel, std::memory_order_acquire);
}

}  // namespace

std::optional<uint32_t> Lender::offer() {
  uint32_t loan;
  if (!numbers_.empty()) {
    loan = numbers_.back();
    numbers_.pop_back();
    ++uses_[loan];
  } else if (lent_.size() < LoanTable::kLoans) {
    loan = limit();
    // Room for all, so that a loan that ends needs no memory.
    base::make_room(numbers_, loan + size_t{1});
    base::make_room(uses_, loan + size_t{1});
    lent_.push_back(false);
    uses_.push_back(0);
  } else {
    return std::nullopt;
  }
  lent_[loan] = true;
  table_.states[loan].store(word_of(ticket(loan), LoanState::kOffered), std::memory_order_release);
  return loan;
}

bool Lender::is_offered(uint32_t loan) const {
  return table_.states[loan].load(std::memory_order_relaxed) ==
         word_of(ticket(loan), LoanState::kOffered);
}

bool Lender::withdraw(uint32_t loan) {
  if (!change(table_, ticket(loan), LoanState::kOffered, LoanState::kNone)) return false;
  forget(loan);
  return true;
}

void Lender::end(uint32_t loan) {
  table_.states[loan].store(word_of(ticket(loan), LoanState::kNone), std::memory_order_release);
  forget(loan);
}

// Whatever count the borrower has written: the loan is its own.
bool Lender::finish_returned(uint32_t loan) {
  if (!is_lent(loan)) return false;
  const uint32_t word = table_.states[loan].load(std::memory_order_acquire);
  if (state_of(word) != LoanState::kReturned) return false;
  end(loan);
  return true;
}

void Lender::forget(uint32_t loan) {
  lent_[loan] = false;
  numbers_.push_back(loan);
}

bool take_loan(LoanTable& table, LoanTicket ticket) {
  return change(table, ticket, LoanState::kOffered, LoanState::kTaken);
}

// The part of the set comes last: a lender that finds it finds the rest. Nothing to do if the
// lender has ended the loan.
void give_back_loan(LoanTable& table, LoanTicket ticket) {
  if (!change(table, ticket, LoanState::kTaken, LoanState::kReturned)) return;
  const uint32_t loan = number_of(ticket);
  const size_t word = loan / 64;
  table.returned[word].fetch_or(uint64_t{1} << (loan % 64), std::memory_order_release);
  table.returned_parts[word / 64].fetch_or(uint64_t{1} << (word % 64), std::memory_order_release);
}

}  // namespace weft::arena
