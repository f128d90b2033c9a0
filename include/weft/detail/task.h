// A move-only callable without arguments; std::function needs copies, continuations have none.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace weft::detail {

class Task {
 public:
  Task() = default;
  template <typename F>
  requires(!std::is_same_v<std::decay_t<F>, Task> && std::is_invocable_v<std::decay_t<F>&>)
      Task(F&& body)
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(body))) {}

  void operator()() { body_->run(); }
  explicit operator bool() const { return body_ != nullptr; }

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual void run() = 0;
  };
  template <typename F>
  struct Body final : Concept {
    template <typename G>
    explicit Body(G&& callable) : f(std::forward<G>(callable)) {}
    void run() override { f(); }
    F f;
  };
  std::unique_ptr<Concept> body_;
};

}  // namespace weft::detail
