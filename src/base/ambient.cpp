// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/ambient.h"

#include <utility>

namespace weft::detail {

namespace {
thread_local Ambient* current_ambient = nullptr;
thread_local BlockingObserver* current_observer = nullptr;
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
