// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/ambient.h"

#include <pthread.h>

#include <utility>

namespace weft::detail {

namespace {
thread_local Ambient* current_ambient = nullptr;
thread_local BlockingObserver* current_observer = nullptr;

// The thread of a forked child serves no call and belongs to no crew, also if the thread that
// forked did.
void forget_in_child() noexcept {
  current_ambient = nullptr;
  current_observer = nullptr;
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, &forget_in_child);
}  // namespace

Ambient* Ambient::current() noexcept { return current_ambient; }

Ambient::Scope::Scope(Ref<Ambient> ambient) noexcept
    : mine_(std::move(ambient)), previous_(current_ambient) {
  current_ambient = mine_.get();
}

Ambient::Scope::~Scope() { current_ambient = previous_; }

BlockingObserver* BlockingObserver::current() noexcept { return current_observer; }
void BlockingObserver::set_current(BlockingObserver* observer) noexcept {
  current_observer = observer;
}

}  // namespace weft::detail
