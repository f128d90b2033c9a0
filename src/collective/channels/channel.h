// One sequence of operations of a group, as one member sees it: those that are going on, what came
// for those that have not begun here, and who has left.
//
// The thread that brings the last chunk that an operation waits for takes the operation further, so
// a channel has no thread of its own. An interface stands between the channel and the outside, so
// that tests can play all members.
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
  std::vector<Tensors> chunks;  // by place, if it gathers
  std::vector<int> present;     // of a membership round: who is still there
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  /// The rest of the world, as a channel needs it.
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual base::Time now() const = 0;
    /// Sends `chunk`; calls `arrived`, if it is given, once the tensors are not needed any more. If
    /// the chunk cannot be sent, calls fail().
    virtual void send(int to, const Chunk& chunk, std::function<void()> arrived) = 0;
    /// Runs `task` soon, on a thread that it may hold up.
    virtual void later(std::function<void()> task) = 0;
    /// An operation has begun: until it is over, missing() is to be called now and then.
    virtual void watch() = 0;
    /// Where continuations of an outcome run; null: on the thread that brings the outcome about.
    virtual detail::ContinuationSink* sink() { return nullptr; }
    /// Tells all others that the channel has failed.
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

  /// Begins the next operation, in which the members of `ranks` take part. Throws the error if the
  /// channel has failed.
  Future<Outcome> start(const Signature& signature, const std::vector<int>& ranks,
                        std::unique_ptr<Algorithm> algorithm);
  /// Where this member is among `ranks`.
  Place place_in(const std::vector<int>& ranks) const;

  /// An operation in which members that have departed need not take part.
  Future<Outcome> agree_on_members();
  /// This member takes part in no further operation until all have departed. The future then gives
  /// the member that departed last.
  Future<int> depart();

  // From other members; `from` is the sender's rank.
  void on_chunk(int from, Chunk chunk);
  /// The channel has failed there, or here: the first cause counts.
  void fail(const Error& error);
  void fail_and_tell(const Error& error);

  std::optional<Error> failure() const;
  bool busy() const;
  /// An operation in which a member waits.
  struct Awaited {
    uint64_t number = 0;
    Signature signature;
  };
  /// For every member that an operation has waited for since `since` or longer: the first such
  /// operation. Gives up operations that are past their deadline.
  std::map<int, Awaited> missing(base::Time since);
  /// Member `from` waits for this one in `awaited`.
  void on_asked(int from, const Awaited& awaited);

 private:
  struct Operation;
  using OperationRef = detail::Ref<Operation>;
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
  std::optional<Error> take_in(int from, Chunk& chunk, OperationRef& ready) WEFT_REQUIRES(mutex_);
  std::optional<Error> impossible(int from, const Chunk& chunk) const WEFT_REQUIRES(mutex_);
  bool is_to_come(const Chunk& chunk) const WEFT_REQUIRES(mutex_);
  static void keep(Operation& operation, int from, Chunk& chunk);
  bool can_go_on(const Operation& operation) const WEFT_REQUIRES(mutex_);
  bool has_departed(int rank, uint64_t number) const WEFT_REQUIRES(mutex_);
  bool is_excused(const Operation& operation, int rank) const WEFT_REQUIRES(mutex_);
  std::vector<int> missing_of(const Operation& operation) const WEFT_REQUIRES(mutex_);
  void advance(const OperationRef& operation);
  void advance_later(const OperationRef& operation) WEFT_REQUIRES(mutex_);
  std::vector<Tensors> take_chunks(Operation& operation) WEFT_REQUIRES(mutex_);
  bool take_step(const OperationRef& operation, uint8_t phase, std::vector<Tensors> chunks);
  void on_worked(const OperationRef& operation, uint8_t phase, const std::exception_ptr& error);
  template <typename F>
  void attempt(Operation& operation, const F& step);
  void finish(const OperationRef& operation);
  std::optional<std::vector<OperationRef>> mark_failed(const Error& error);
  void end_all(const std::vector<OperationRef>& operations, const Error& error);
  int conclude_epoch() WEFT_REQUIRES(mutex_);
  bool has_left() const WEFT_REQUIRES(mutex_);
  void on_departed();
  std::optional<Error> disagreement(const Operation& operation, int from, const Chunk& chunk) const;
  Error disagreement(uint64_t number, const Signature& signature, int from,
                     const Signature& theirs) const;
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
  std::map<uint64_t, OperationRef> operations_ WEFT_GUARDED_BY(mutex_);
  // The signature of the latest that are over, at their numbers modulo its size: somebody may come
  // late with others.
  std::vector<std::pair<uint64_t, Signature>> finished_ WEFT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<Early>> early_ WEFT_GUARDED_BY(mutex_);
  size_t early_chunks_ WEFT_GUARDED_BY(mutex_) = 0;
  // How often all have departed, and of this time the first operation of each that it is not in.
  uint64_t epoch_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::map<int, uint64_t>> departed_ WEFT_GUARDED_BY(mutex_);  // by epoch
};

}  // namespace weft::collective
