// One sequence of operations of a group, as one member sees it: the operations that are going on,
// the chunks that came for operations that have not begun here, and the members that have departed.
//
// An operation has no thread of its own: the thread that brings the last chunk it waits for takes
// it further. Channel::Outside is all that a channel needs of the rest of the world; tests
// implement it and play all members.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "collective/algorithms/algorithm.h"
#include "collective/algorithms/operation_message.h"
#include "weft/detail/ref_counted.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::collective {

/// The result of an operation.
struct Outcome {
  std::vector<Tensors> chunks;  // empty if it is in place; by place if the operation gathers
  std::vector<int> present;     // of a membership round: the ranks that have not departed
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual base::Time now() const = 0;
    /// Sends `chunk`. Calls `arrived`, if given, when the tensors are not needed any more. If the
    /// chunk cannot be sent, fails the channel. `lasting`: nobody changes the tensors any more.
    virtual void send(int to, const Chunk& chunk, bool lasting, std::function<void()> arrived) = 0;
    /// Runs `task` soon, on a thread that it may occupy for long, beside other tasks.
    virtual void later(std::function<void()> task) = 0;
    /// An operation has begun. Until it is over, the implementer calls missing() now and then.
    virtual void watch() = 0;
    /// Where continuations of an outcome run; null: on the thread that settles it.
    virtual detail::ContinuationSink* sink() { return nullptr; }
    /// Tells all others that the channel has failed. Must not throw: who waits here is told next.
    virtual void tell_failed(const Error& error) = 0;
    virtual std::string name(int rank) const = 0;
    /// "group [a, b]"
    virtual std::string group_name() const = 0;
  };

  Channel(ChannelId id, int rank, int size, Timeout timeout, std::shared_ptr<Outside> outside);
  ~Channel();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<int>& everybody() const { return everybody_; }

  /// Begins the next operation, in which the members in `ranks` (ascending) take part. If the
  /// channel has failed, throws the error it failed with.
  Future<Outcome> start(const Signature& signature, const std::vector<int>& ranks,
                        std::unique_ptr<Algorithm> algorithm);
  /// The place of this member among `ranks`.
  Place place_in(const std::vector<int>& ranks) const;

  /// A membership round: an operation that does not wait for members that have departed.
  /// Outcome::present has the ranks of the others. All must give the same divisor.
  Future<Outcome> agree_on_members(Divisor divisor = Divisor::kAll);
  /// This member has no batches left (nn::join) and takes part in no further operation. When all
  /// members have departed, the next epoch begins, in which all take part again, and the future
  /// gives the rank of a member that took part in the most operations.
  Future<int> depart();

  void on_chunk(int from, Chunk chunk);
  /// Ends all operations with `error`, and all later ones. Does nothing if the channel has failed
  /// before.
  void fail(const Error& error);
  /// The same, and tells the other members.
  void fail_and_tell(const Error& error);

  std::optional<Error> failure() const;
  bool busy() const;
  /// An operation that a member waits in.
  struct Awaited {
    uint64_t number = 0;
    Signature signature;
  };
  /// For every member whose chunk is missing in an operation that began at `since` or earlier: the
  /// first such operation. Fails the channel with kTimeout if an operation is past its deadline.
  std::map<int, Awaited> missing(base::Time since);
  /// Member `from` waits for this one in `awaited`. Fails the channel if that is another operation
  /// here.
  void on_asked(int from, const Awaited& awaited);

 private:
  struct Operation;
  using OperationRef = detail::Ref<Operation>;
  using Operations = std::map<uint64_t, OperationRef>;
  using Lock = base::MutexLock;
  struct Early {
    int from;
    Chunk chunk;
  };

  OperationRef enter(uint64_t number, const Signature& signature, const std::vector<int>& ranks,
                     std::unique_ptr<Algorithm> algorithm, base::Time deadline,
                     std::optional<Error>& wrong) WEFT_REQUIRES(mutex_);
  void give_up(const std::optional<Error>& wrong);
  void begin(const OperationRef& operation);
  void send(Operation& operation, Algorithm::Sendings sendings);
  void on_sent(const OperationRef& operation);
  /// What the thread that brings a chunk is to do without the lock.
  struct Errand {
    enum class Kind { kNone, kUse, kAdvance, kAdvanceLater } kind = Kind::kNone;
    OperationRef operation;
  };
  std::optional<Error> take_in(int from, Chunk& chunk, Errand& errand) WEFT_REQUIRES(mutex_);
  Errand take_into(const OperationRef& operation, int from, Chunk& chunk) WEFT_REQUIRES(mutex_);
  void run(const Errand& errand, int from, Chunk chunk);
  void use(const OperationRef& operation, int from, const Chunk& chunk);
  static Errand advance_later(const OperationRef& operation);
  std::optional<Error> impossible(int from, const Chunk& chunk) const WEFT_REQUIRES(mutex_);
  bool is_to_come(const Chunk& chunk) const WEFT_REQUIRES(mutex_);
  static size_t place_of(const Operation& operation, int rank);
  static bool is_new(const Operation& operation, int from, const Chunk& chunk);
  static void keep(Operation& operation, int from, Tensors tensors, uint8_t phase);
  bool can_go_on(const Operation& operation) const WEFT_REQUIRES(mutex_);
  bool has_departed(int rank, uint64_t number) const WEFT_REQUIRES(mutex_);
  bool is_excused(const Operation& operation, int rank) const WEFT_REQUIRES(mutex_);
  std::vector<int> missing_of(const Operation& operation) const WEFT_REQUIRES(mutex_);
  void advance(const OperationRef& operation);
  void post_advance(const OperationRef& operation) WEFT_EXCLUDES(mutex_);
  std::vector<Tensors> take_chunks(Operation& operation) WEFT_REQUIRES(mutex_);
  bool take_step(const OperationRef& operation, uint8_t phase, std::vector<Tensors> chunks);
  void on_worked(const OperationRef& operation, uint8_t phase, const std::exception_ptr& error);
  void attempt(const Operation& operation, const std::function<void()>& step);
  void finish(const OperationRef& operation);
  std::optional<Operations> mark_failed(const Error& error);
  void end_all(const Operations& operations, const Error& error);
  int conclude_epoch() WEFT_REQUIRES(mutex_);
  bool has_left() const WEFT_REQUIRES(mutex_);
  void on_departed();
  std::optional<Error> disagreement(const Operation& operation, int from, const Chunk& chunk) const;
  Error disagreement(uint64_t number, const Signature& signature, int from,
                     const Signature& theirs) const;
  Error too_early(const Operation& operation, int from, const Chunk& chunk) const;
  Error failure_of(const Operation& operation, const std::exception& error) const;
  std::string title(uint64_t number, const Signature& signature) const;

  const ChannelId id_;
  const int rank_;
  const int size_;
  const Timeout timeout_;
  const std::shared_ptr<Outside> outside_;
  std::vector<int> everybody_;

  mutable base::Mutex mutex_;
  std::optional<Error> failure_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  Operations operations_ WEFT_GUARDED_BY(mutex_);
  // Number and signature of the latest operations that are over, at the index number % size. A
  // chunk that comes late is compared with them.
  std::vector<std::pair<uint64_t, Signature>> finished_ WEFT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<Early>> early_ WEFT_GUARDED_BY(mutex_);
  size_t early_chunks_ WEFT_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_ WEFT_GUARDED_BY(mutex_) = 0;  // how often all members have departed
  // departed_[epoch][rank]: the number of the first operation that this rank is not in.
  std::map<uint64_t, std::map<int, uint64_t>> departed_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collective
