// One member's side of one operation: which chunks the member sends, and what it computes from the
// chunks that come. No threads, no messages.
//
// An operation has phases. In each phase a member may expect one chunk from some of the others.
// When all of them are there, the algorithm uses them and says what to send next; chunks that need
// nothing but to be put in their place are used as they come, by several threads. A place is a
// member's index among the members that take part in this operation.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collective/algorithms/fold.h"
#include "collective/algorithms/operation_message.h"

namespace weft::collective {

struct Place {
  size_t own = 0;   // this member's index among those that take part
  size_t size = 1;  // how many take part
};

class Algorithm {
 public:
  struct Sending {
    size_t to;
    uint8_t phase;
    Tensors tensors;
    bool lasting = false;  // nobody changes the tensors as long as somebody has them
  };
  using Sendings = std::vector<Sending>;

  Algorithm(Place place, uint8_t phases) : place_(place), phases_(phases) {}
  virtual ~Algorithm() = default;

  const Place& place() const { return place_; }
  uint8_t phases() const { return phases_; }

  virtual Sendings begin() = 0;
  virtual bool expects(uint8_t phase, size_t from) const = 0;
  /// Whether in this phase every member that expects a chunk expects it from all. If not, a member
  /// whose chunk is missing may itself wait for another one.
  virtual bool expects_all(uint8_t) const { return true; }
  /// Whether the chunks of this phase are used one by one, as they come. Such chunks answer what
  /// this member has sent, so none comes before this member has begun.
  virtual bool uses_at_once(uint8_t) const { return false; }
  /// Uses one of them; several threads may do so at the same time, for different places, also
  /// before the operation has reached the phase. Throws kBadMessage if the chunk does not fit.
  virtual void use(uint8_t, size_t, const Tensors&) {}
  /// Called when every chunk that was expected is there. `chunks` is indexed by place; those that
  /// were used at once are empty. Throws kBadMessage if a chunk does not fit.
  virtual Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) = 0;

  /// Whether this phase needs work on another thread of this process (an accelerator's) before
  /// go_on(). The channel then calls work_elsewhere() when all chunks are there, and go_on(),
  /// without chunks, after `done`. That thread calls `done` once, with the error or null.
  virtual bool works_elsewhere(uint8_t) const { return false; }
  using Done = std::function<void(std::exception_ptr)>;
  virtual void work_elsewhere(std::vector<Tensors>, Done) {}

  /// Called when the operation is over. Returns its result; nothing if the operation has written
  /// its result into the tensors it was given.
  virtual std::vector<Tensors> take_result() { return {}; }

 protected:
  /// Sends `what(place)` to every other place.
  template <typename F>
  Sendings to_each_other(uint8_t phase, const F& what) const {
    Sendings sendings;
    for (size_t i = 0; i < place_.size; ++i) {
      if (i != place_.own) sendings.push_back({i, phase, what(i)});
    }
    return sendings;
  }
  /// Sends the same tensors to all other places.
  Sendings to_others(uint8_t phase, const Tensors& tensors) const {
    return to_each_other(phase, [&](size_t) { return tensors; });
  }

 private:
  const Place place_;
  const uint8_t phases_;
};

// Tensors must be flat, that is of one dimension and contiguous, except those of all_gather.

/// Gives tensors like the flat ones it gets, in memory that receivers read where it is; nothing if
/// there is none.
using SharedMemory = std::function<Tensors(const Tensors& like)>;

/// choice.h says which way it goes. By shares, the reduction is written into `tensors`, and
/// take_result() gives nothing; in the other ways take_result() gives it, in other memory.
std::unique_ptr<Algorithm> all_reduce_algorithm(Place place, Tensors tensors,
                                                const Folding& folding,
                                                AllReduceWay way = AllReduceWay::kAutomatic,
                                                SharedMemory shared_memory = nullptr);
/// Copies the tensors of `root` into the tensors of the others.
std::unique_ptr<Algorithm> broadcast_algorithm(Place place, Tensors tensors, size_t root);
/// Tensors of any type and shape, but as many on every member. The result has those of all members,
/// by place.
std::unique_ptr<Algorithm> all_gather_algorithm(Place place, Tensors tensors);
/// `tensors` has one tensor for each place. The result is the reduction of those for this place.
std::unique_ptr<Algorithm> reduce_scatter_algorithm(Place place, Tensors tensors,
                                                    const Folding& folding);
/// Every member sends an empty chunk to every other.
std::unique_ptr<Algorithm> barrier_algorithm(Place place);

}  // namespace weft::collective
