// A class of optimizers in a form that workers can name to each other: how to make an optimizer,
// and how to read and write its options and its state.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "weft/error.h"
#include "weft/export.h"
#include "weft/record.h"

namespace weft::optim {

/// What Weft must know of an optimizer class Opt: its `Options` and `State` (the ParamState it
/// keeps for each parameter), and the fields of both, which are bool, int64_t, double, std::string,
/// at::Tensor or pairs (std::tuple) of these. weft/optim/optimizer_traits.h has a specialization
/// for each class of libtorch and of Weft; write a similar one for a class of your own. It may also
/// have
///   static bool takes_sparse(const Options&)
///       whether an optimizer with these options accepts sparse gradients; default: true
///   static constexpr bool kStateOfOtherSizes = true
///       for a class whose state has tensors of other sizes than the parameter. Leave it out
///       otherwise: Weft looks at its presence, not at its value.
template <typename Opt>
struct OptimizerTraits;

class WEFT_API OptimizerKind {
 public:
  virtual const std::type_info& type() const = 0;
  virtual std::unique_ptr<torch::optim::Optimizer> make(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const torch::optim::OptimizerOptions& defaults) const = 0;
  virtual Record write(const torch::optim::OptimizerOptions& options) const = 0;
  virtual Record write(const torch::optim::OptimizerParamState& state) const = 0;
  /// Throw kInvalidArgument for a record that lacks a field or has one too many.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> read_options(const Record&) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> read_state(const Record&) const = 0;
  /// Whether an optimizer with these options accepts sparse gradients. If not, a step with a sparse
  /// gradient is refused before anything is changed.
  virtual bool takes_sparse(const torch::optim::OptimizerOptions& options) const = 0;
  /// A record with all fields that a state has.
  virtual Record blank_state() const = 0;
  virtual bool state_of_parameters_sizes() const = 0;

 protected:
  ~OptimizerKind() = default;
};

/// Adds a kind to the process's table. That happens before main for every kind that the program
/// mentions.
WEFT_API const OptimizerKind& register_kind(const OptimizerKind& kind);
/// The name of the class, by which workers name it to each other.
WEFT_API std::string name_of(const OptimizerKind& kind);
/// Throws kInvalidArgument if this program knows no such kind.
WEFT_API const OptimizerKind& find_kind(const std::string& name);

namespace detail {

template <typename T>
inline constexpr bool is_field =
    std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, at::Tensor>;

/// Visits fields in order to write them down.
class FieldWriter {
 public:
  template <typename T>
  void operator()(const std::string& name, const T& value) {
    static_assert(is_field<T>, "a field is bool, int64_t, double, std::string or at::Tensor");
    record_[name] = value;
  }
  template <typename A, typename B>
  void operator()(const std::string& name, const std::tuple<A, B>& pair) {
    (*this)(name + ".0", std::get<0>(pair));
    (*this)(name + ".1", std::get<1>(pair));
  }
  Record take() { return std::move(record_); }

 private:
  Record record_;
};

/// Visits fields in order to fill them.
class FieldReader {
 public:
  explicit FieldReader(const Record& record) : record_(record) {}
  template <typename T>
  void operator()(const std::string& name, T& value) {
    static_assert(is_field<T>, "a field is bool, int64_t, double, std::string or at::Tensor");
    auto found = record_.find(name);
    if (std::is_same_v<T, at::Tensor> && found == record_.end())
      return;  // undefined tensors are left out of a record
    const T* held = found == record_.end() ? nullptr : std::get_if<T>(&found->second);
    if (!held) fail("has no " + name + " of the right type");
    value = *held;
    ++read_;
  }
  template <typename A, typename B>
  void operator()(const std::string& name, std::tuple<A, B>& pair) {
    (*this)(name + ".0", std::get<0>(pair));
    (*this)(name + ".1", std::get<1>(pair));
  }
  void finish() const {
    if (read_ != record_.size()) {
      fail("has " + std::to_string(record_.size()) + " fields, of which " + std::to_string(read_) +
           " are known");
    }
  }

 private:
  [[noreturn]] static void fail(const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "a record of an optimizer " + what);
  }
  const Record& record_;
  size_t read_ = 0;
};

template <typename Opt>
class TypedKind final : public OptimizerKind {
 public:
  using Traits = OptimizerTraits<Opt>;
  using Options = typename Traits::Options;
  using State = typename Traits::State;

  static const OptimizerKind& get() { return registered_; }

  const std::type_info& type() const override { return typeid(Opt); }
  std::unique_ptr<torch::optim::Optimizer> make(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const torch::optim::OptimizerOptions& defaults) const override {
    return std::make_unique<Opt>(std::move(groups), cast(defaults));
  }
  Record write(const torch::optim::OptimizerOptions& options) const override {
    FieldWriter writer;
    Traits::visit_options(cast(options), writer);
    return writer.take();
  }
  Record write(const torch::optim::OptimizerParamState& state) const override {
    FieldWriter writer;
    Traits::visit_state(static_cast<const State&>(state), writer);
    return writer.take();
  }
  std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const Record& record) const override {
    auto options = std::make_unique<Options>(/*lr=*/0);
    FieldReader reader(record);
    Traits::visit_options(*options, reader);
    reader.finish();
    return options;
  }
  std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Record& record) const override {
    auto state = std::make_unique<State>();
    FieldReader reader(record);
    Traits::visit_state(*state, reader);
    reader.finish();
    return state;
  }
  bool takes_sparse(const torch::optim::OptimizerOptions& options) const override {
    if constexpr (requires { Traits::takes_sparse(std::declval<const Options&>()); }) {
      return Traits::takes_sparse(cast(options));
    }
    return true;
  }
  Record blank_state() const override { return write(State()); }
  bool state_of_parameters_sizes() const override {
    return !requires { Traits::kStateOfOtherSizes; };
  }

 private:
  static const Options& cast(const torch::optim::OptimizerOptions& options) {
    if (const auto* own = dynamic_cast<const Options*>(&options)) return *own;
    throw Error(ErrorCode::kInvalidArgument,
                "a parameter group has the options of another class of optimizers");
  }

  static inline const TypedKind kind_{};
  static inline const OptimizerKind& registered_ = register_kind(kind_);
};

}  // namespace detail

/// Makes Opt known in a program that has parameters but never names the class otherwise. Needed
/// only for classes that are neither libtorch's nor Weft's.
template <typename Opt>
void expose() {
  (void)detail::TypedKind<Opt>::get();
}

}  // namespace weft::optim
