// The state that a piece of user code inherits from the call it runs for. Threads carry it,
// continuations capture it; layers above subclass it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "weft/detail/ref_counted.h"
#include "weft/export.h"

namespace weft::detail {

class WEFT_API Ambient : public RefCounted {
 public:
  static Ambient* current() noexcept;

  /// The call that user code runs for: this, or what this was made current within. Null if none.
  virtual Ambient* call() { return this; }
  /// The companion (rpc/companion.h) of the calls made here; null if there is none.
  virtual RefCounted* companion() { return nullptr; }

  /// Makes `ambient` current on this thread until the scope ends.
  class Scope {
   public:
    explicit Scope(Ref<Ambient> ambient) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Ref<Ambient> mine_;
    Ambient* previous_;
  };
};

/// A thread whose waiting somebody should know of (it leads a loop, say). Waits announce
/// themselves to the observer of their thread before they sleep and after they woke.
class WEFT_API BlockingObserver {
 public:
  virtual void before_blocking() = 0;
  virtual void after_blocking() = 0;

  static BlockingObserver* current() noexcept;
  static void set_current(BlockingObserver* observer) noexcept;

 protected:
  ~BlockingObserver() = default;
};

class BlockingRegion {
 public:
  BlockingRegion() : observer_(BlockingObserver::current()) {
    if (observer_) observer_->before_blocking();
  }
  ~BlockingRegion() {
    if (observer_) observer_->after_blocking();
  }
  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;

 private:
  BlockingObserver* observer_;
};

}  // namespace weft::detail
