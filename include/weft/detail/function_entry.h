// A function that can be called from other processes: its name, its signature, its typed entry.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "weft/codec.h"
#include "weft/detail/ref_counted.h"
#include "weft/export.h"
#include "weft/future.h"
#include "weft/same_host.h"

namespace weft::detail {

/// One incoming call as the typed code sees it.
class WEFT_API Invocation {
 public:
  virtual Decoder& arguments() = 0;
  /// Whether something the arguments need is not there yet; then `run` is called when it is.
  virtual bool must_wait() const = 0;
  virtual void run_when_ready(Task run) = 0;
  /// The arguments are decoded; what follows is the user's.
  virtual void begin_user_code() = 0;
  virtual void reply(Encoder& value) = 0;
  virtual void fail(std::exception_ptr error) = 0;
  /// Keeps the call alive beyond the function that started it.
  virtual void add_holder() = 0;
  virtual void drop_holder() = 0;

 protected:
  ~Invocation() = default;
};

using InvokeFunction = void (*)(Invocation&);

/// What a call leaves on the worker that served it.
enum class Makes : uint8_t { kNothing, kObject };
/// Whether an argument is the place of the object that the function makes.
template <typename T>
inline constexpr bool kIsSlot = false;

struct FunctionEntry {
  uint32_t index = 0;  // in this process
  std::string name;
  uint64_t signature = 0;
  std::string signature_text;
  InvokeFunction invoke = nullptr;
  bool ambiguous = false;  // another function has the same name and signature
  bool reserved = false;   // Weft's own: not counted as work, never behind users' calls
  Makes makes = Makes::kNothing;
};

/// The qualified name of the function in a FunctionTag, from the tag's mangled name.
WEFT_API std::string function_name_from_tag(const char* tag);
WEFT_API std::string type_name(const std::type_info& type);

/// Adds a function to the process's table; called before main for every function that is called or
/// exposed anywhere in the program. A name of more than 128 bytes is cut and gets a hash.
WEFT_API FunctionEntry& register_function(std::string name, std::string signature,
                                          InvokeFunction invoke, Makes makes);
/// Throws kInvalidArgument for an empty or long name, and for one that begins with "sys.".
WEFT_API void rename_function(FunctionEntry& entry, std::string name);
/// Gives one of Weft's own functions its name, which begins with "sys.".
WEFT_API void reserve_function(FunctionEntry& entry, std::string name);

template <typename Signature>
struct SignatureTraits;
template <typename R, typename... P>
struct SignatureTraits<R(P...)> {
  using Returned = R;
  using Result = typename Unwrapped<R>::type;  // what callers see
  using Arguments = std::tuple<std::decay_t<P>...>;
  static constexpr bool kAsynchronous = !std::is_same_v<R, Result>;
  static constexpr size_t kArity = sizeof...(P);
  static constexpr bool kBorrows = (kIsBorrowed<std::decay_t<P>> || ...);
  static constexpr Makes kMakes =
      (kIsSlot<std::decay_t<P>> || ...) ? Makes::kObject : Makes::kNothing;
  static_assert((!(std::is_lvalue_reference_v<P> &&
                   !std::is_const_v<std::remove_reference_t<P>>)&&...),
                "a remote function cannot take its arguments by non-const reference");
  static_assert((!std::is_pointer_v<std::decay_t<P>> && ...),
                "a pointer means nothing on another worker");
};

template <typename F>
struct CallableTraits : CallableTraits<decltype(&F::operator())> {};
template <typename R, typename... P>
struct CallableTraits<R (*)(P...)> : SignatureTraits<R(P...)> {};
template <typename R, typename... P>
struct CallableTraits<R (*)(P...) noexcept> : SignatureTraits<R(P...)> {};
template <typename C, typename R, typename... P>
struct CallableTraits<R (C::*)(P...) const> : SignatureTraits<R(P...)> {};
template <typename C, typename R, typename... P>
struct CallableTraits<R (C::*)(P...) const noexcept> : SignatureTraits<R(P...)> {};

template <auto F>
struct FunctionTag {};

// How a function is called in errors and on the wire: as its user wrote it.

/// A function or a method by its own name: "space::add", "Counter::add".
template <auto F>
struct OwnName {
  static std::string name() { return function_name_from_tag(typeid(FunctionTag<F>).name()); }
};
/// `F` called so that its result stays: "remote<space::make>".
template <auto F>
struct RemoteName {
  static std::string name() { return "remote<" + OwnName<F>::name() + ">"; }
};
/// The construction of a T: "remote<space::Counter>".
template <typename T>
struct ConstructionName {
  static std::string name() { return "remote<" + type_name(typeid(T)) + ">"; }
};

class InvocationHolder {
 public:
  explicit InvocationHolder(Invocation& call) : call_(&call) { call.add_holder(); }
  InvocationHolder(InvocationHolder&& other) noexcept
      : call_(std::exchange(other.call_, nullptr)) {}
  ~InvocationHolder() {
    if (call_) call_->drop_holder();
  }
  Invocation& operator*() const { return *call_; }

 private:
  Invocation* call_;
};

template <typename R>
void reply_with(Invocation& call, const R& value) {
  Encoder out;
  Codec<R>::encode(out, value);
  call.reply(out);
}

/// Of what `make` returns only the reply is left when it is sent: then the memory of a tensor that
/// nobody else has can go to the caller as it is.
template <typename R, typename Make>
void reply_with_result_of(Invocation& call, const Make& make) {
  Encoder out;
  if constexpr (std::is_void_v<R>) {
    make();
  } else {
    Codec<R>::encode(out, make());
  }
  call.reply(out);
}

template <typename R>
void reply_when_ready(Invocation& call, const Future<R>& pending) {
  pending.on_ready([holder = InvocationHolder(call)](const Future<R>& done) {
    auto& state = FutureAccess::state(done);
    try {
      if (state.failed()) state.rethrow();
      if constexpr (std::is_void_v<R>) {
        reply_with_result_of<void>(*holder, [] {});
      } else {
        reply_with<R>(*holder, state.value());
      }
    } catch (...) {
      (*holder).fail(std::current_exception());
    }
  });
}

/// The entry of F in the table of functions: decodes arguments, calls F, encodes the result.
template <auto F, typename Name = OwnName<F>>
class RemoteFunction {
 public:
  using Traits = CallableTraits<std::decay_t<decltype(F)>>;
  using Result = typename Traits::Result;
  using Arguments = typename Traits::Arguments;
  static constexpr bool kBorrows = Traits::kBorrows;
  static_assert(!kBorrows || !Traits::kAsynchronous,
                "a function that returns a Future cannot borrow: it returns before it is done");

  static const FunctionEntry& entry() { return entry_; }
  static void rename(std::string name) { rename_function(entry_, std::move(name)); }
  static void reserve(std::string name) { reserve_function(entry_, std::move(name)); }

  template <typename... Args>
  static void encode(Encoder& out, Args&&... args) {
    static_assert(sizeof...(Args) == Traits::kArity, "wrong number of arguments for this function");
    encode_each(out, std::index_sequence_for<Args...>{}, args...);
  }

 private:
  static std::string signature() {
    TypeDescription text;
    Codec<Arguments>::describe(text);
    text.add("->");
    if constexpr (std::is_void_v<Result>) {
      text.add("v");
    } else {
      text.template type<Result>();
    }
    return text.text();
  }

  template <size_t... I, typename... Args>
  static void encode_each(Encoder& out, std::index_sequence<I...>, Args&... args) {
    (encode_one<std::tuple_element_t<I, Arguments>>(out, args), ...);
  }
  template <typename P, typename Arg>
  static void encode_one(Encoder& out, Arg& arg) {
    static_assert(std::is_convertible_v<Arg&, P>,
                  "an argument has the wrong type for this function");
    if constexpr (std::is_same_v<std::remove_const_t<Arg>, P>) {
      Codec<P>::encode(out, arg);
    } else {
      const P converted = arg;
      Codec<P>::encode(out, converted);
    }
  }

  static void invoke(Invocation& call) {
    Arguments arguments = Codec<Arguments>::decode(call.arguments());
    call.arguments().finish();
    if (call.must_wait()) {
      call.run_when_ready(
          [&call, arguments = std::move(arguments)]() mutable { run(call, std::move(arguments)); });
    } else {
      run(call, std::move(arguments));
    }
  }

  static void run(Invocation& call, Arguments arguments) {
    call.begin_user_code();
    if constexpr (Traits::kAsynchronous) {
      reply_when_ready(call, std::apply(F, std::move(arguments)));
    } else {
      reply_with_result_of<Result>(call, [&arguments]() -> decltype(auto) {
        return apply(std::move(arguments), std::bool_constant<kBorrows>());
      });
    }
  }

  static decltype(auto) apply(Arguments&& arguments, std::false_type) {
    return std::apply(F, std::move(arguments));
  }
  static Result apply(Arguments&& arguments, std::true_type) {
    BorrowedArguments borrowed;
    std::apply([&borrowed](const auto&... each) { (borrowed.add(each), ...); }, arguments);
    // The arguments end before what was borrowed is looked at.
    const auto call = [](Arguments own) -> Result { return std::apply(F, std::move(own)); };
    if constexpr (std::is_void_v<Result>) {
      call(std::move(arguments));
      borrowed.check(entry_.name);
    } else {
      Result result = call(std::move(arguments));
      borrowed.check(entry_.name);
      return result;
    }
  }

  static inline FunctionEntry& entry_ =
      register_function(Name::name(), signature(), &invoke, Traits::kMakes);
};

}  // namespace weft::detail
