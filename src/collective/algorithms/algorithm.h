// How one operation goes on one member: which chunks it sends, and what it makes of those that
// come. No threads, no messages.
//
// An operation has phases. In each a member may expect one chunk from some of the others; when they
// are there it makes something of them, and says what to send next. Places are those among the
// members that take part in this operation.
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

/// How many take part, and which of them this one is.
struct Place {
  size_t own = 0;
  size_t size = 1;
};

class Algorithm {
 public:
  struct Sending {
    size_t to;
    uint8_t phase;
    Tensors tensors;
  };
  using Sendings = std::vector<Sending>;

  Algorithm(Place place, uint8_t phases) : place_(place), phases_(phases) {}
  virtual ~Algorithm() = default;

  const Place& place() const { return place_; }
  uint8_t phases() const { return phases_; }

  virtual Sendings begin() = 0;
  virtual bool expects(uint8_t phase, size_t from) const = 0;
  /// Every chunk that was expected is there, by place. Throws kBadMessage for what does not fit.
  virtual Sendings go_on(uint8_t phase, std::vector<Tensors> chunks) = 0;

  /// Whether go_on() has to wait for work on another thread. work_elsewhere() begins it when the
  /// chunks are there; `done` is then called once, with the failure or null, and go_on() gets no
  /// chunks.
  virtual bool works_elsewhere(uint8_t) const { return false; }
  using Done = std::function<void(std::exception_ptr)>;
  virtual void work_elsewhere(std::vector<Tensors>, Done) {}

  /// After the last phase: the result for this member, if it is not in the tensors that were given.
  virtual std::vector<Tensors> take_result() { return {}; }

 protected:
  /// Sends to every other member what `what` returns for its place.
  template <typename F>
  Sendings to_each_other(uint8_t phase, const F& what) const {
    Sendings sendings;
    for (size_t i = 0; i < place_.size; ++i) {
      if (i != place_.own) sendings.push_back({i, phase, what(i)});
    }
    return sendings;
  }
  /// Sends the same tensors to every other member.
  Sendings to_others(uint8_t phase, const Tensors& tensors) const {
    return to_each_other(phase, [&](size_t) { return tensors; });
  }

 private:
  const Place place_;
  const uint8_t phases_;
};

// Tensors are flat: of one dimension and without gaps.

/// The reduction of all. Few elements: everybody sends all to everybody, and the result is apart.
/// Many: everybody reduces a share of them and sends it to the others, and they are in place of
/// `tensors`; there is no result then.
std::unique_ptr<Algorithm> all_reduce_algorithm(Place place, Tensors tensors,
                                                const Folding& folding);
/// The tensors of `root`, in place of the others'.
std::unique_ptr<Algorithm> broadcast_algorithm(Place place, Tensors tensors, size_t root);
/// Any tensors; the result has all of them, by place.
std::unique_ptr<Algorithm> all_gather_algorithm(Place place, Tensors tensors);
/// `tensors` has one for each; the result is the reduction of those for this place.
std::unique_ptr<Algorithm> reduce_scatter_algorithm(Place place, Tensors tensors,
                                                    const Folding& folding);
/// Every member sends nothing to every other.
std::unique_ptr<Algorithm> barrier_algorithm(Place place);

}  // namespace weft::collective
