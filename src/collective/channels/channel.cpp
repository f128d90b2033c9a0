// SPDX-License-Identifier: BSD-3-Clause
#include "collective/channels/channel.h"

#include <cxxabi.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error_without_memory.h"
#include "collective/channels/operation.h"

namespace weft::collective {

namespace {

// Chunks of up to so many bytes are copied when they are sent, so that the operation need not wait
// until they have arrived.
constexpr int64_t kCopiedBytes = 64 * 1024;
// Up to so many elements the thread that serves a chunk also takes the operation further.
constexpr uint64_t kFewElements = 256 * 1024;
// The signatures of so many operations that are over are remembered.
constexpr size_t kRemembered = 64;

int64_t bytes_to_send(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.is_sparse() ? kCopiedBytes + 1 : tensor.numel() * tensor.element_size();
  }
  return bytes;
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

Channel::Channel(ChannelId id, int rank, int size, Timeout timeout,
                 std::shared_ptr<Outside> outside)
    : id_(id), rank_(rank), size_(size), timeout_(timeout), outside_(std::move(outside)) {
  finished_.resize(kRemembered, {~uint64_t{0}, {}});
  everybody_.resize(static_cast<size_t>(size));
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

Channel::~Channel() = default;

Place Channel::place_in(const std::vector<int>& ranks) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank_);
  return {static_cast<size_t>(at - ranks.begin()), ranks.size()};
}

// --- beginning -------------------------------------------------------------------------------

Future<Outcome> Channel::start(const Signature& signature, const std::vector<int>& ranks,
                               std::unique_ptr<Algorithm> algorithm) {
  const bool bounded = timeout_.count() > 0;
  const base::Time now = outside_->now();
  OperationRef operation;
  std::optional<Error> wrong;
  {
    const Lock lock(mutex_);
    if (has_left()) {
      throw Error(ErrorCode::kInvalidArgument,
                  title(next_, signature) + " of a member that has joined, before all have");
    }
    operation = enter(next_, signature, ranks, std::move(algorithm),
                      bounded ? base::later(now, timeout_) : base::Time::max(), wrong);
    if (!wrong) ++next_;
  }
  give_up(wrong);
  const Future<Outcome> outcome = operation->future();
  attempt(*operation, [&] { outside_->watch(); });
  if (!operation->heavy) {
    begin(operation);
    return outcome;
  }
  {
    const Lock lock(mutex_);
    operation->queued = true;
  }
  const auto start = [self = shared_from_this(), operation] { self->begin(operation); };
  try {
    // Sending takes time, which the caller may have better use for.
    outside_->later(start);
  } catch (const std::bad_alloc&) {
    start();
  }
  return outcome;
}

void Channel::begin(const OperationRef& operation) {
  {
    const Lock lock(mutex_);
    operation->queued = false;
  }
  attempt(*operation, [&] {
    if (!failure()) send(*operation, operation->algorithm->begin());
  });
  {
    const Lock lock(mutex_);
    operation->advancing = false;
  }
  advance(operation);
  bool somebody_left = false;
  {
    const Lock lock(mutex_);
    somebody_left = departed_.contains(epoch_);
  }
  if (somebody_left) on_departed();
}

// The new operation counts as advancing: the caller sends its first chunks and then advances it.
// Sets `wrong` if another member has begun a different operation under this number.
Channel::OperationRef Channel::enter(uint64_t number, const Signature& signature,
                                     const std::vector<int>& ranks,
                                     std::unique_ptr<Algorithm> algorithm, base::Time deadline,
                                     std::optional<Error>& wrong) {
  if (failure_) throw *failure_;
  auto operation = detail::make_ref<Operation>();
  operation->number = number;
  operation->signature = signature;
  operation->ranks = ranks;
  operation->algorithm = std::move(algorithm);
  operation->began = outside_->now();
  operation->deadline = deadline;
  operation->arrived.resize(operation->algorithm->phases());
  for (auto& chunks : operation->arrived) chunks.resize(ranks.size());
  operation->using_chunks.resize(operation->algorithm->phases());
  // An algorithm of several phases sends while it advances. A thread that serves calls must not
  // wait until something can be sent.
  operation->heavy = signature.elements > kFewElements || operation->algorithm->phases() > 1;
  operation->advancing = true;
  operations_.emplace(number, operation);

  auto early = early_.extract(number);
  if (!early) return operation;
  early_chunks_ -= early.mapped().size();
  for (Early& each : early.mapped()) {
    wrong = disagreement(*operation, each.from, each.chunk);
    if (!wrong && operation->algorithm->uses_at_once(each.chunk.phase))
      wrong = too_early(*operation, each.from, each.chunk);
    if (wrong) break;
    if (is_new(*operation, each.from, each.chunk))
      keep(*operation, each.from, std::move(each.chunk.tensors), each.chunk.phase);
  }
  return operation;
}

void Channel::give_up(const std::optional<Error>& wrong) {
  if (!wrong) return;
  fail_and_tell(*wrong);
  throw *wrong;
}

void Channel::send(Operation& operation, Algorithm::Sendings sendings) {
  if (sendings.empty()) return;
  size_t awaited = 0;
  for (Algorithm::Sending& each : sendings) {
    if (!each.lasting && bytes_to_send(each.tensors) <= kCopiedBytes) {
      each.tensors = copies_of(each.tensors);
      each.lasting = true;
    }
    if (!each.lasting) ++awaited;
  }
  uint64_t epoch = 0;
  {
    Lock lock(mutex_);
    epoch = epoch_;
    operation.unsent += awaited;
  }
  for (Algorithm::Sending& each : sendings) {
    Chunk chunk{id_, epoch, operation.number, each.phase, operation.signature, {}};
    chunk.tensors = std::move(each.tensors);
    std::function<void()> arrived;
    if (!each.lasting) {
      arrived = [self = shared_from_this(), ref = OperationRef::share(&operation)] {
        self->on_sent(ref);
      };
    }
    outside_->send(operation.ranks[each.to], chunk, each.lasting, std::move(arrived));
  }
}

void Channel::on_sent(const OperationRef& operation) {
  bool is_last = true;
  {
    const Lock lock(mutex_);
    if (--operation->unsent > 0 || failure_ || operation->advancing || !can_go_on(*operation)) {
      return;
    }
    is_last = operation->phase == operation->algorithm->phases();
    if (!is_last) advance_later(operation);
  }
  // The thread that receives replies only finishes an operation; it does not advance one.
  if (is_last) {
    finish(operation);
  } else {
    post_advance(operation);
  }
}

// --- going on --------------------------------------------------------------------------------

std::vector<int> Channel::missing_of(const Operation& operation) const {
  std::vector<int> missing;
  if (operation.phase == operation.algorithm->phases()) return missing;
  for (size_t i = 0; i < operation.ranks.size(); ++i) {
    if (operation.algorithm->expects(operation.phase, i) &&
        !operation.arrived[operation.phase][i] && !is_excused(operation, operation.ranks[i])) {
      missing.push_back(operation.ranks[i]);
    }
  }
  return missing;
}

bool Channel::can_go_on(const Operation& operation) const {
  if (operation.phase == operation.algorithm->phases()) return operation.unsent == 0;
  return operation.using_chunks[operation.phase] == 0 && missing_of(operation).empty();
}

// Under the lock: nobody else advances it until post_advance() was called, without the lock.
Channel::Errand Channel::advance_later(const OperationRef& operation) {
  operation->advancing = operation->queued = true;
  return {Errand::Kind::kAdvanceLater, operation};
}

void Channel::post_advance(const OperationRef& operation) {
  const auto go_on = [self = shared_from_this(), operation] {
    {
      const Lock lock(self->mutex_);
      operation->advancing = operation->queued = false;
    }
    self->advance(operation);
  };
  try {
    outside_->later(go_on);
  } catch (const std::bad_alloc&) {
    go_on();
  }
}

// Takes the operation as far as the chunks allow, unless another thread is doing so.
void Channel::advance(const OperationRef& operation) {
  for (;;) {
    uint8_t phase = 0;
    std::vector<Tensors> chunks;
    std::optional<Error> failure;
    {
      const Lock lock(mutex_);
      if (operation->advancing) return;
      failure = failure_;
      if (failure && operation->in_use()) return;
      if (!failure) {
        if (!operation->algorithm || !can_go_on(*operation)) return;
        phase = operation->phase;
        if (phase < operation->algorithm->phases()) {
          chunks = take_chunks(*operation);
          operation->advancing = true;
          // Set before the work: missing() then asks for the chunks of the next phase already.
          operation->phase = static_cast<uint8_t>(phase + 1);
        }
      }
    }
    if (failure) {
      if (operation->outcome->claim()) operation->outcome->settle_error(*failure, outside_->sink());
      return;
    }
    if (chunks.empty()) return finish(operation);
    if (!take_step(operation, phase, std::move(chunks))) return;
    const Lock lock(mutex_);
    operation->advancing = false;
  }
}

// The chunks of the current phase, by place; never empty. In a membership round only those of the
// members that are present.
std::vector<Tensors> Channel::take_chunks(Operation& operation) {
  const uint8_t phase = operation.phase;
  std::vector<Tensors> chunks;
  for (auto& chunk : operation.arrived[phase]) {
    chunks.push_back(chunk ? std::move(*chunk) : Tensors());
  }
  if (asks_membership(operation.signature)) {
    std::vector<int> present;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const int rank = operation.ranks[i];
      if (rank == rank_ || operation.arrived[phase][i]) present.push_back(rank);
    }
    operation.ranks = std::move(present);
    chunks.resize(operation.ranks.size());
  }
  return chunks;
}

// Runs `step`; if it throws, the channel fails, whether a chunk was wrong or could not be sent.
void Channel::attempt(const Operation& operation, const std::function<void()>& step) {
  try {
    const c10::AutoGradMode off(false);
    step();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& error) {
    fail_and_tell(
        base::error_by(ErrorCode::kLimitExceeded, [&] { return failure_of(operation, error); }));
  }
}

// Does the work of a phase. False if another thread does it, which calls on_worked() afterwards.
bool Channel::take_step(const OperationRef& operation, uint8_t phase, std::vector<Tensors> chunks) {
  Algorithm& algorithm = *operation->algorithm;
  bool over = true;
  attempt(*operation, [&] {
    if (!algorithm.works_elsewhere(phase)) {
      return send(*operation, algorithm.go_on(phase, std::move(chunks)));
    }
    algorithm.work_elsewhere(std::move(chunks),
                             [self = shared_from_this(), operation, phase](const auto& error) {
                               self->on_worked(operation, phase, error);
                             });
    over = false;
  });
  return over;
}

void Channel::on_worked(const OperationRef& operation, uint8_t phase,
                        const std::exception_ptr& error) {
  attempt(*operation, [&] {
    if (error) std::rethrow_exception(error);
    send(*operation, operation->algorithm->go_on(phase, {}));
  });
  {
    const Lock lock(mutex_);
    operation->advancing = false;
  }
  advance(operation);
}

void Channel::finish(const OperationRef& operation) {
  std::unique_ptr<Algorithm> algorithm;
  {
    const Lock lock(mutex_);
    const auto found = operations_.find(operation->number);
    if (found == operations_.end() || found->second.get() != operation.get())
      return;  // another thread has finished it
    operations_.erase(found);
    if (operation->number < kDepartures) {
      finished_[operation->number % finished_.size()] = {operation->number, operation->signature};
    } else {
      operation->ranks = {conclude_epoch()};
    }
    algorithm = std::move(operation->algorithm);
  }
  if (!operation->outcome->claim()) return;
  Outcome outcome;
  std::exception_ptr failure;
  try {
    outcome = {algorithm->take_result(), operation->ranks};
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {  // there is no memory for the result: those who wait get that in place of it
    failure = std::current_exception();
  }
  algorithm.reset();  // lets go of the tensors: the caller may use them again
  if (failure) {
    operation->outcome->settle_error(std::move(failure), outside_->sink());
  } else {
    operation->outcome->settle_value(std::move(outcome), outside_->sink());
  }
}

// --- failing ---------------------------------------------------------------------------------

// Returns the operations that the caller has to end; nothing if the channel had failed before.
// Needs no memory.
std::optional<Channel::Operations> Channel::mark_failed(const Error& error) {
  std::map<uint64_t, std::vector<Early>> early;
  Operations failed;
  Lock lock(mutex_);
  if (failure_) return std::nullopt;
  failure_ = error;
  failed.swap(operations_);
  // A thread that works on an operation may be writing to its tensors, so that thread ends it.
  std::erase_if(failed, [](const auto& each) { return each.second->in_use(); });
  early.swap(early_);
  early_chunks_ = 0;
  lock.unlock();
  return failed;
}

void Channel::end_all(const Operations& operations, const Error& error) {
  for (const auto& [number, operation] : operations) {
    if (operation->outcome->claim()) operation->outcome->settle_error(error, outside_->sink());
  }
}

void Channel::fail(const Error& error) {
  if (const auto failed = mark_failed(error)) end_all(*failed, error);
}

// Tells the others first: a thread that waits here may go on to shut this worker down.
void Channel::fail_and_tell(const Error& error) {
  const auto failed = mark_failed(error);
  if (!failed) return;
  outside_->tell_failed(error);
  end_all(*failed, error);
}

std::optional<Error> Channel::failure() const {
  Lock lock(mutex_);
  return failure_;
}

bool Channel::busy() const {
  Lock lock(mutex_);
  return !operations_.empty();
}

std::map<int, Channel::Awaited> Channel::missing(base::Time since) {
  std::map<int, Awaited> all;
  std::optional<Error> late;
  {
    Lock lock(mutex_);
    const base::Time now = outside_->now();
    for (const auto& [number, operation] : operations_) {
      const std::vector<int> missing = missing_of(*operation);
      if (operation->began <= since) {
        for (const int rank : missing) all.try_emplace(rank, Awaited{number, operation->signature});
      }
      if (now < operation->deadline || late) continue;
      std::vector<std::string> names;
      for (const int rank : missing) names.push_back(outside_->name(rank));
      // If no chunk is missing, this member itself is late.
      if (names.empty() && (operation->advancing || operation->in_use()))
        names.push_back(outside_->name(rank_));
      const bool may_wait_too = !names.empty() && operation->algorithm &&
                                !operation->algorithm->expects_all(operation->phase);
      late = Error(ErrorCode::kTimeout,
                   fmt::format("{} took longer than {} s; missing: {}{}",
                               title(number, operation->signature),
                               std::chrono::duration<double>(timeout_).count(),
                               names.empty() ? "nobody" : fmt::format("{}", fmt::join(names, ", ")),
                               may_wait_too ? ", or another member that it waits for" : ""));
    }
  }
  if (late) fail_and_tell(*late);
  return all;
}

Error Channel::failure_of(const Operation& operation, const std::exception& error) const {
  const auto* typed = dynamic_cast<const Error*>(&error);
  const auto* torch = dynamic_cast<const c10::Error*>(&error);  // its what() has a stack trace
  return Error(typed ? typed->code() : ErrorCode::kBadMessage,
               fmt::format("{}: {}", title(operation.number, operation.signature),
                           typed   ? typed->message()
                           : torch ? torch->what_without_backtrace()
                                   : error.what()));
}

std::string Channel::title(uint64_t number, const Signature& signature) const {
  return fmt::format("{}: operation {}, {}", outside_->group_name(), number, describe(signature));
}

}  // namespace weft::collective
