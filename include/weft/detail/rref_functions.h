// The functions that go over the wire for uses of objects: methods, creations, fetching a value.
//
// A served function takes the object it uses as RRefTarget and the object it makes as RRefSlot;
// both travel as the object's id.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "weft/detail/rref_core.h"
#include "weft/rpc.h"
#include "weft/serialized.h"

namespace weft {

namespace detail {

template <typename T>
const RRefType& rref_type() {
  static const RRefType type{&typeid(T), serialized<T>};
  return type;
}

/// A creation's result; `void` is kept as a value of this type.
template <typename R>
using Kept = Stored<std::decay_t<R>>;

/// The object of a call, as the function that serves it sees it: created, and its turn taken.
template <typename T>
class RRefTarget {
 public:
  RRefTarget() = default;
  explicit RRefTarget(const RRefId& id) : id_(id) {}
  explicit RRefTarget(RRefUse use) : use_(std::make_shared<RRefUse>(std::move(use))) {}

  const RRefId& id() const { return id_; }
  T& value() const { return *static_cast<T*>(use_->object().value()); }
  /// Lets the next call of a serialized object run. The object stays in use.
  void end_turn() const { use_->end_turn(); }

 private:
  RRefId id_;
  std::shared_ptr<RRefUse> use_;
};

/// The object a call is to make: filled, or failed when the last copy goes.
template <typename T>
class RRefSlot {
 public:
  RRefSlot() = default;
  explicit RRefSlot(const RRefId& id) : id_(id) {}
  explicit RRefSlot(Ref<RRefObject> object)
      : filling_(std::make_shared<Filling>(std::move(object))) {}

  const RRefId& id() const { return id_; }
  template <typename... Args>
  void emplace(Args&&... args) const {
    fill(std::make_shared<T>(std::forward<Args>(args)...));
  }
  void fill(std::shared_ptr<T> value) const { filling_->object->fill(std::move(value)); }
  void fail(std::exception_ptr error) const { filling_->object->fail(std::move(error)); }

 private:
  struct Filling {
    explicit Filling(Ref<RRefObject> made) : object(std::move(made)) {}
    ~Filling() {
      if (!object->is_settled()) {
        object->fail(std::make_exception_ptr(Error(
            ErrorCode::kRRefLost, "the function that was to make this object did not finish")));
      }
    }
    Ref<RRefObject> object;
  };
  RRefId id_;
  std::shared_ptr<Filling> filling_;
};
template <typename T>
inline constexpr bool kIsSlot<RRefSlot<T>> = true;

/// Calls `f`, whose result goes into `slot`.
template <typename Returned, typename T, typename F>
auto fill_slot(const RRefSlot<T>& slot, F f) {
  using Result = typename Unwrapped<std::decay_t<Returned>>::type;
  if constexpr (!std::is_same_v<std::decay_t<Returned>, Result>) {
    auto pending = [&]() -> std::decay_t<Returned> {
      try {
        return f();
      } catch (...) {
        slot.fail(std::current_exception());
        throw;
      }
    }();
    Promise<void> promise;
    Future<void> done = promise.future();
    pending.on_ready([slot, promise = std::move(promise)](const Future<Result>& outcome) mutable {
      auto& state = FutureAccess::state(outcome);
      try {
        if (state.failed()) state.rethrow();
        slot.emplace(state.value());
        promise.set_value();
      } catch (...) {
        slot.fail(std::current_exception());
        promise.set_exception(std::current_exception());
      }
    });
    return done;
  } else {
    try {
      if constexpr (std::is_void_v<Result>) {
        f();
        slot.emplace();
      } else {
        slot.emplace(f());
      }
    } catch (...) {
      slot.fail(std::current_exception());
      throw;
    }
  }
}

// How a member function, or a free function of T&, is called: what it returns and takes besides T.
template <typename R, typename... P>
struct MethodSignature {
  using Returned = std::conditional_t<std::is_void_v<R>, void, std::decay_t<R>>;
  using Result = typename Unwrapped<Returned>::type;
};
template <typename M>
struct MethodTraits;
#define WEFT_METHOD(qualifiers)                                                                  \
  template <typename C, typename R, typename... P>                                               \
  struct MethodTraits<R (C::*)(P...) qualifiers> : MethodSignature<R, P...> {                    \
    using Class = C;                                                                             \
    template <template <typename, typename...> typename To, typename... First>                   \
    using Apply = To<typename MethodSignature<R, P...>::Returned, First..., std::decay_t<P>...>; \
  };
WEFT_METHOD()
WEFT_METHOD(const)
WEFT_METHOD(noexcept)
WEFT_METHOD(const noexcept)
#undef WEFT_METHOD
template <typename R, typename Object, typename... P>
struct MethodTraits<R (*)(Object&, P...)> : MethodSignature<R, P...> {
  template <template <typename, typename...> typename To, typename... First>
  using Apply = To<typename MethodSignature<R, P...>::Returned, First..., std::decay_t<P>...>;
};

/// The functions that go over the wire for method M of T.
template <typename T, auto M>
struct RemoteMethod {
  template <typename Returned, typename... P>
  struct Call {
    static Returned run(RRefTarget<T> target, P... args) {
      if constexpr (std::is_same_v<Returned, typename Unwrapped<Returned>::type>) {
        return std::invoke(M, target.value(), std::move(args)...);
      } else {
        Returned pending = std::invoke(M, target.value(), std::move(args)...);
        target.end_turn();
        pending.on_ready([target](const Returned&) {});  // the object is in use until then
        return pending;
      }
    }
  };
  template <typename Returned, typename... P>
  struct Creation {
    using Value = Kept<typename Unwrapped<Returned>::type>;
    static auto run(RRefSlot<Value> slot, RRefTarget<T> target, P... args) {
      return fill_slot<Returned>(slot, [&]() -> decltype(auto) {
        return Call<Returned, P...>::run(target, std::move(args)...);
      });
    }
  };
  using Traits = MethodTraits<decltype(M)>;
  using Result = typename Traits::Result;
  using CallFunction = RemoteFunction<&Traits::template Apply<Call>::run, OwnName<M>>;
  using CreationFunction = RemoteFunction<&Traits::template Apply<Creation>::run, RemoteName<M>>;
};

/// The functions that go over the wire for objects made by F, or constructed.
template <auto F, typename Arguments>
struct RemoteMaking;
template <auto F, typename... P>
struct RemoteMaking<F, std::tuple<P...>> {
  using Returned = typename CallableTraits<std::decay_t<decltype(F)>>::Returned;
  using Value = Kept<typename Unwrapped<std::decay_t<Returned>>::type>;
  static auto run(RRefSlot<Value> slot, P... args) {
    return fill_slot<Returned>(slot, [&]() -> decltype(auto) { return F(std::move(args)...); });
  }
  using CreationFunction = RemoteFunction<&RemoteMaking::run, RemoteName<F>>;
};
template <typename T, typename... P>
struct RemoteConstruction {
  static void run(RRefSlot<T> slot, P... args) {
    try {
      slot.emplace(std::move(args)...);
    } catch (...) {
      slot.fail(std::current_exception());
      throw;
    }
  }
  using CreationFunction = RemoteFunction<&RemoteConstruction::run, ConstructionName<T>>;
};
// Text travels as a string.
template <typename Arg>
using Transported =
    std::conditional_t<std::is_convertible_v<Arg, const char*>, std::string, std::decay_t<Arg>>;

/// The function that goes over the wire for RRef<T>::to_here().
template <typename T>
struct RemoteFetch {
  static T run(RRefTarget<T> target) { return target.value(); }
  static std::string name() { return "RRef<" + type_name(typeid(T)) + ">::to_here"; }
  using CallFunction = RemoteFunction<&RemoteFetch::run, RemoteFetch>;
};

}  // namespace detail

template <typename T>
struct Codec<detail::RRefTarget<T>> {
  static void encode(Encoder& out, const detail::RRefTarget<T>& target) {
    Codec<detail::RRefId>::encode(out, target.id());
  }
  static detail::RRefTarget<T> decode(Decoder& in) {
    return detail::RRefTarget<T>(detail::decode_rref_target(in, detail::rref_type<T>()));
  }
  static void describe(TypeDescription& out) {
    out.add((std::string("R>") + typeid(T).name()).c_str());
  }
};

template <typename T>
struct Codec<detail::RRefSlot<T>> {
  static void encode(Encoder& out, const detail::RRefSlot<T>& slot) {
    Codec<detail::RRefId>::encode(out, slot.id());
  }
  static detail::RRefSlot<T> decode(Decoder& in) {
    return detail::RRefSlot<T>(detail::decode_rref_creation(in, detail::rref_type<T>()));
  }
  static void describe(TypeDescription& out) {
    out.add((std::string("R+") + typeid(T).name()).c_str());
  }
};

}  // namespace weft
