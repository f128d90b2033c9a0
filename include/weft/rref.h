// References to objects on other workers.
//
//   weft::RRef<Counter> counter = weft::remote<Counter>("worker1", 10);  // constructed there
//   int64_t sum = counter.rpc_sync<&Counter::add>(5);
//   weft::RRef<at::Tensor> result = weft::remote<compute>("worker1", x);  // stays there
//   at::Tensor copy = result.to_here();
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "weft/detail/rref_core.h"
#include "weft/detail/rref_functions.h"
#include "weft/rpc.h"
#include "weft/rref_census.h"
#include "weft/serialized.h"

namespace weft {

namespace detail {
struct RRefAccess;
}

/// A reference to an object of type T on some worker of the group, its owner. Copies share one
/// hold; the object lives until the last hold on any worker is gone. Travels in arguments and
/// results. T need be neither copyable nor movable; its owner keeps it in a std::shared_ptr, so
/// std::enable_shared_from_this works in it. Thread-safe. Default-constructed it refers to
/// nothing.
template <typename T>
class RRef {
 public:
  using element_type = T;

  RRef() = default;
  /// A value of this worker's own, to be shared by reference.
  explicit RRef(T value) : RRef(current_agent(), std::move(value)) {}
  RRef(Agent& agent, T value) : handle_(detail::make_local_rref(agent, detail::rref_type<T>())) {
    handle_->object()->fill(std::make_shared<T>(std::move(value)));
  }

  explicit operator bool() const { return static_cast<bool>(handle_); }
  const WorkerInfo& owner() const { return handle().owner(); }
  bool is_owner() const { return handle().object() != nullptr; }
  /// Whether the owner has confirmed this worker as a holder: it answered the creation, if this
  /// worker created the object, else it granted the registration. A creator does not see here that
  /// the owner dropped it later.
  bool confirmed_by_owner() const { return handle().confirmed(); }

  /// The value itself, on its owner; waits until it exists. In a function that serves a call it
  /// waits only as long as the caller does. Throws kInvalidArgument elsewhere, kTimeout,
  /// kCancelled, and what its creation failed with.
  T& local_value() const;

  /// A copy of the value; waits until it exists. Throws kRRefLost if the owner is gone, kTimeout,
  /// kCancelled like local_value(), and what its creation failed with.
  T to_here(std::optional<Timeout> timeout = std::nullopt) const {
    return to_here(CallOptions{timeout});
  }
  T to_here(const CallOptions& options) const;

  /// Calls a method of the object, or a free function of T&, on its owner.
  template <auto M, typename... Args>
  typename detail::RemoteMethod<T, M>::Result rpc_sync(Args&&... args) const;
  template <auto M, typename... Args>
  Future<typename detail::RemoteMethod<T, M>::Result> rpc_async(Args&&... args) const;
  /// The result stays on the owner.
  template <auto M, typename... Args>
  RRef<detail::Kept<typename detail::RemoteMethod<T, M>::Result>> remote(Args&&... args) const;

  /// For a scalar tensor: adds the gradients of everything it depends on to `context`, an
  /// autograd::Context, as Context::backward() does for tensors of this worker's.
  template <typename Context, typename... Options>
  void backward(Context& context, const Options&... options) const
      requires(std::is_same_v<T, at::Tensor>) {
    context.backward_from(*this, options...);
  }

  /// The same calls with a time limit or other options:
  /// `counter.within(50ms).rpc_sync<&Counter::add>(1)`.
  class With;
  With within(Timeout limit) const { return {*this, CallOptions{limit}}; }
  With with(const CallOptions& options) const { return {*this, options}; }

 private:
  friend struct detail::RRefAccess;
  friend struct Codec<RRef>;
  explicit RRef(detail::Ref<detail::RRefHandle> handle) : handle_(std::move(handle)) {}

  const detail::RRefHandle& handle() const {
    if (!handle_) throw Error(ErrorCode::kInvalidArgument, "an empty RRef refers to nothing");
    return *handle_;
  }

  detail::Ref<detail::RRefHandle> handle_;
};

namespace detail {

struct RRefAccess {
  template <typename T>
  static const Ref<RRefHandle>& handle(const RRef<T>& rref) {
    (void)rref.handle();
    return rref.handle_;
  }
  template <typename T>
  static RRef<T> make(Ref<RRefHandle> handle) {
    return RRef<T>(std::move(handle));
  }

  /// Calls `Function`, a RemoteFunction, on the object's owner.
  template <typename Function, typename T, typename... Args>
  static auto call(const RRef<T>& rref, const CallOptions& options, bool waits, Args&... args) {
    const Ref<RRefHandle>& held = handle(rref);
    held->check_created();
    Encoder arguments;
    use_rref(arguments, held);
    Function::encode(arguments, args...);
    auto call = make_ref<RRefCall<typename Function::Result>>(held);
    start_rref_call(*held, *call, Function::entry(), options, waits, arguments);
    return FutureAccess::make<typename Function::Result>(std::move(call));
  }

  /// Has `Function` fill a new object on `to`; `used` is kept until it has. An object of this
  /// worker's own is kept until then too: the function runs although the reference may be dropped.
  template <typename Function, typename T, typename... Args>
  static RRef<T> create(rpc::AgentCore& agent, const Destination& to, const Ref<RRefHandle>& used,
                        Args&... args) {
    Ref<RRefHandle> made = make_remote_rref(agent, to);
    Encoder arguments;
    if (used) use_rref(arguments, used);
    if (made->object()) arguments.keep(Ref<RRefObject>::share(made->object()));
    const RRefSlot<T> slot(made->id());
    Function::encode(arguments, slot, args...);
    auto call = make_ref<RRefCreation>(*made);
    start_rref_call(*made, *call, Function::entry(), to.options(), true, arguments);
    made->set_creation(FutureAccess::make<void>(std::move(call)));
    return RRef<T>(std::move(made));
  }

  // Method M of the object.
  template <auto M, typename T, typename... Args>
  static auto sync(const RRef<T>& rref, const CallOptions& options, Args&... args) {
    auto pending = start<M>(rref, options, /*waits=*/true, args...);
    try {
      return std::move(pending).wait();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kRRefLost) rref.handle().check_created_soon();
      throw;
    }
  }
  template <auto M, typename T, typename... Args>
  static auto async(const RRef<T>& rref, const CallOptions& options, Args&... args) {
    return start<M>(rref, options, /*waits=*/false, args...);
  }
  template <auto M, typename T, typename... Args>
  static auto remote(const RRef<T>& rref, const CallOptions& options, Args&... args) {
    using Method = RemoteMethod<T, M>;
    const RRefTarget<T> target(rref.handle().id());
    return create<typename Method::CreationFunction, Kept<typename Method::Result>>(
        *rref.handle().agent(), Destination(rref.owner(), options), rref.handle_, target, args...);
  }

 private:
  template <auto M, typename T, typename... Args>
  static auto start(const RRef<T>& rref, const CallOptions& options, bool waits, Args&... args) {
    const RRefTarget<T> target(rref.handle().id());
    return call<typename RemoteMethod<T, M>::CallFunction>(rref, options, waits, target, args...);
  }
};

}  // namespace detail

template <typename T>
template <auto M, typename... Args>
typename detail::RemoteMethod<T, M>::Result RRef<T>::rpc_sync(Args&&... args) const {
  return detail::RRefAccess::sync<M>(*this, {}, args...);
}
template <typename T>
template <auto M, typename... Args>
Future<typename detail::RemoteMethod<T, M>::Result> RRef<T>::rpc_async(Args&&... args) const {
  return detail::RRefAccess::async<M>(*this, {}, args...);
}
template <typename T>
template <auto M, typename... Args>
RRef<detail::Kept<typename detail::RemoteMethod<T, M>::Result>> RRef<T>::remote(
    Args&&... args) const {
  return detail::RRefAccess::remote<M>(*this, {}, args...);
}

template <typename T>
class RRef<T>::With {
 public:
  template <auto M, typename... Args>
  typename detail::RemoteMethod<T, M>::Result rpc_sync(Args&&... args) const {
    return detail::RRefAccess::sync<M>(rref_, options_, args...);
  }
  template <auto M, typename... Args>
  Future<typename detail::RemoteMethod<T, M>::Result> rpc_async(Args&&... args) const {
    return detail::RRefAccess::async<M>(rref_, options_, args...);
  }
  template <auto M, typename... Args>
  RRef<detail::Kept<typename detail::RemoteMethod<T, M>::Result>> remote(Args&&... args) const {
    return detail::RRefAccess::remote<M>(rref_, options_, args...);
  }

 private:
  friend class RRef;
  With(RRef rref, const CallOptions& options) : rref_(std::move(rref)), options_(options) {}

  const RRef rref_;  // a copy: `make_counter().within(1s)` may be kept
  const CallOptions options_;
};

template <typename T>
T& RRef<T>::local_value() const {
  detail::RRefObject* object = handle().object();
  if (!object) {
    throw Error(ErrorCode::kInvalidArgument,
                "local_value() of an object that lives on " + owner().name + "; call it there");
  }
  detail::await_object(handle(), CallOptions{Timeout(0)});
  return *static_cast<T*>(object->value());
}

template <typename T>
T RRef<T>::to_here(const CallOptions& options) const {
  if (is_owner()) {
    detail::await_object(handle(), options);
    return local_value();
  }
  using Fetch = typename detail::RemoteFetch<T>::CallFunction;
  const detail::RRefTarget<T> target(handle().id());
  const detail::RRefTimeLimit limit(handle(), options);  // for both attempts together
  for (int attempt = 0;; ++attempt) {
    try {
      return detail::RRefAccess::call<Fetch>(*this, limit.left(), true, target).wait();
    } catch (const Error& error) {
      handle().check_created();  // the better reason, if there is one
      // The connection broke and the owner lives: to ask again does no harm.
      if (error.code() != ErrorCode::kOutcomeUnknown || attempt > 0) throw;
    }
  }
}

/// Calls F on `to`, where the result stays; returns at once. What goes wrong is reported by every
/// use.
template <auto F, typename... Args>
auto remote(Agent& agent, const Destination& to, Args&&... args) {
  using Function = detail::RemoteFunction<F>;
  using Making = detail::RemoteMaking<F, typename Function::Arguments>;
  return detail::RRefAccess::create<typename Making::CreationFunction, typename Making::Value>(
      *detail::AgentAccess::core(agent), to, {}, args...);
}
template <auto F, typename... Args>
auto remote(const Destination& to, Args&&... args) {
  return remote<F>(current_agent(), to, std::forward<Args>(args)...);
}

/// Constructs a T on `to`.
template <typename T, typename... Args>
RRef<T> remote(Agent& agent, const Destination& to, Args&&... args) {
  using Making = detail::RemoteConstruction<T, detail::Transported<Args>...>;
  return detail::RRefAccess::create<typename Making::CreationFunction, T>(
      *detail::AgentAccess::core(agent), to, {}, args...);
}
template <typename T, typename... Args>
RRef<T> remote(const Destination& to, Args&&... args) {
  return remote<T>(current_agent(), to, std::forward<Args>(args)...);
}

/// Makes method M of objects of class T (default: the class that declares it) callable in a program
/// that serves it but never calls it itself.
template <auto M, typename T = typename detail::MethodTraits<decltype(M)>::Class>
requires std::is_member_function_pointer_v<decltype(M)>
void expose() {
  (void)detail::RemoteMethod<T, M>::CallFunction::entry();
  (void)detail::RemoteMethod<T, M>::CreationFunction::entry();
}
/// The same for `remote<F>(...)`, and for `remote<T>(...)` with these arguments.
template <auto F>
void expose_remote() {
  using Making = detail::RemoteMaking<F, typename detail::RemoteFunction<F>::Arguments>;
  (void)Making::CreationFunction::entry();
}
template <typename T, typename... Args>
void expose_remote() {
  (void)detail::RemoteConstruction<T, detail::Transported<Args>...>::CreationFunction::entry();
}
/// The same for `to_here()` of references to a T.
template <typename T>
void expose_value() {
  (void)detail::RemoteFetch<T>::CallFunction::entry();
}

template <typename T>
struct Codec<RRef<T>> {
  static void encode(Encoder& out, const RRef<T>& rref) { detail::encode_rref(out, rref.handle_); }
  static RRef<T> decode(Decoder& in) {
    return RRef<T>(detail::decode_rref(in, detail::rref_type<T>()));
  }
  static void describe(TypeDescription& out) {
    out.add((std::string("R") + typeid(T).name()).c_str());
  }
};

}  // namespace weft
