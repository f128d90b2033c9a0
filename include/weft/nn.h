// Modules on other workers.
//
//   weft::nn::RemoteModule<EmbeddingTableImpl> table("ps/cpu", 100, 16);  // built there
//   at::Tensor rows = table.forward(ids);
//   weft::optim::DistributedOptimizer<torch::optim::Adam> optimizer(table.remote_parameters(),
//   0.05);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd.h"
#include "weft/detail/hosted_module.h"
#include "weft/export.h"
#include "weft/nn/distributed_data_parallel.h"
#include "weft/nn/torch_options.h"
#include "weft/rref.h"

namespace weft::nn {

/// Where a module is to live: "ps", "ps/cuda:0", "rank:1", "rank:1/cpu". `timeout`: how long its
/// construction may take; by default as long as any call.
class WEFT_API Placement {
 public:
  /// Throw kInvalidArgument if the text is not a placement.
  Placement(const std::string& text, std::optional<Timeout> timeout = std::nullopt);
  Placement(const char* text, std::optional<Timeout> timeout = std::nullopt)
      : Placement(std::string(text), timeout) {}

  const Destination& worker() const { return worker_; }
  /// In the form that at::Device reads.
  const std::string& device() const { return device_; }

 private:
  Destination worker_;
  std::string device_;
};

/// Parameters and buffers by name, as named_parameters() and named_buffers() name them.
using ModuleState = std::map<std::string, at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, RRef<at::Tensor>>>;

/// The part of RemoteModule that does not depend on the class of the module. Each method calls the
/// worker that has the module and waits for the answer. These methods may run at the same time as
/// the module's own methods, even if its class is serialized. to(), zero_grad(), state() and
/// load_state() never run at the same time as a step of an optimizer on that worker; the others
/// may.
class WEFT_API AnyRemoteModule {
 public:
  const WorkerInfo& owner() const { return hosted_.owner(); }

  /// References to the parameters themselves, for an optimizer. A parameter that several layers
  /// share is in the list once.
  std::vector<RRef<at::Tensor>> remote_parameters(bool recurse = true) const;
  NamedTensors named_parameters(bool recurse = true) const;
  std::vector<RRef<at::Tensor>> buffers(bool recurse = true) const;
  NamedTensors named_buffers(bool recurse = true) const;

  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;
  /// "cpu", "cuda:0", ... References to its parameters stay valid.
  void to(const std::string& device);
  /// Clears `.grad`. The gradients of a context are not in `.grad`.
  void zero_grad();

  /// A copy of everything the module has learned.
  ModuleState state() const;
  /// Throws kInvalidArgument, naming every tensor that is missing, unknown or of another shape,
  /// before anything is changed.
  void load_state(const ModuleState& state);

  /// The module without its class, for layers above.
  const RRef<HostedModule>& hosted() const { return hosted_; }

 protected:
  AnyRemoteModule() = default;
  explicit AnyRemoteModule(RRef<HostedModule> hosted) : hosted_(std::move(hosted)) {}

 private:
  RRef<HostedModule> hosted_;
};

namespace detail {

template <typename M, typename... Args>
struct ModuleMaking {
  static void run(weft::detail::RRefSlot<M> slot, std::string device, Args... args) {
    try {
      auto module = std::make_shared<M>(std::move(args)...);
      module->to(at::Device(device));
      slot.fill(std::move(module));
    } catch (...) {
      slot.fail(std::current_exception());
      throw;
    }
  }

  static std::string name() { return "RemoteModule<" + weft::detail::type_name(typeid(M)) + ">"; }
  using CreationFunction = weft::detail::RemoteFunction<&ModuleMaking::run, ModuleMaking>;
};

template <typename M, typename... Args>
concept TakesForward = requires(M& module, Args... args) {
  module.forward(std::move(args)...);
};

template <typename M, typename... Args>
struct ModuleForward {
  static_assert(TakesForward<M, Args...>, "the module has no forward that takes these arguments");
  using Result = std::decay_t<decltype(std::declval<M&>().forward(std::declval<Args>()...))>;
  static Result run(M& module, Args... args) {
    const auto accelerator = accelerator_of(module);
    if (!accelerator) return module.forward(std::move(args)...);
    (move_tensors(args, *accelerator), ...);
    if constexpr (std::is_void_v<Result>) {
      module.forward(std::move(args)...);
    } else {
      Result result = module.forward(std::move(args)...);
      move_tensors(result, at::Device(at::kCPU));
      return result;
    }
  }
};

template <typename M>
inline constexpr bool is_holder = std::is_base_of_v<torch::detail::ModuleHolderIndicator, M>;

}  // namespace detail

/// A module of class M that lives on another worker (or this one). Copies refer to the same module.
/// A RemoteModule can be an argument or a result of a call. The program of the worker that has the
/// module must contain the same uses of RemoteModule<M>.
template <typename M>
class RemoteModule : public AnyRemoteModule {
  static_assert(!detail::is_holder<M>,
                "name the module's own class, such as torch::nn::LinearImpl for torch::nn::Linear");
  static_assert(detail::is_holder<M> || std::is_base_of_v<torch::nn::Module, M>,
                "a remote module must be a torch::nn::Module");

 public:
  RemoteModule() = default;

  /// Constructs M(args...) on that worker and returns at once. If the construction fails, every use
  /// reports it. Arguments may be libtorch's option structs.
  template <typename... Args>
  explicit RemoteModule(const Placement& where, Args&&... args)
      : RemoteModule(current_agent(), where, std::forward<Args>(args)...) {}
  template <typename... Args>
  RemoteModule(Agent& agent, const Placement& where, Args&&... args)
      : RemoteModule(make(agent, where, args...)) {}
  /// For a module that exists already.
  explicit RemoteModule(RRef<M> module)
      : AnyRemoteModule(module.template remote<&detail::host_module<M>>()),
        module_(std::move(module)) {}

  /// Calls M::forward on the module's worker. If the module is on a GPU, tensor arguments are moved
  /// there and tensor results back to the CPU, also those in vectors, optionals, std::maps, pairs
  /// and tuples; tensors in other types are not moved. Default arguments and overloads of forward
  /// work.
  template <typename... Args>
  auto forward(Args&&... args) const {
    return module_.template rpc_sync<kForward<Args...>>(args...);
  }
  template <typename... Args>
  auto forward_async(Args&&... args) const {
    return module_.template rpc_async<kForward<Args...>>(args...);
  }
  /// The result stays on the module's worker.
  template <typename... Args>
  auto forward_remote(Args&&... args) const {
    return module_.template remote<kForward<Args...>>(args...);
  }

  const RRef<M>& module_rref() const { return module_; }

#define WEFT_NOT_REMOTE(method, instead)                                            \
  template <typename... Args>                                                       \
  void method(Args&&...) const {                                                    \
    static_assert(sizeof...(Args) > 1000, #method " of a remote module: " instead); \
  }
  WEFT_NOT_REMOTE(parameters, "parameters cannot be brought here, use remote_parameters()")
  WEFT_NOT_REMOTE(register_parameter, "say it in the module's constructor")
  WEFT_NOT_REMOTE(register_buffer, "say it in the module's constructor")
  WEFT_NOT_REMOTE(register_module, "say it in the module's constructor")
  WEFT_NOT_REMOTE(apply, "a function cannot travel, call one there through module_rref()")
  WEFT_NOT_REMOTE(children, "submodules cannot be brought here, use module_rref()")
  WEFT_NOT_REMOTE(named_children, "submodules cannot be brought here, use module_rref()")
  WEFT_NOT_REMOTE(modules, "submodules cannot be brought here, use module_rref()")
  WEFT_NOT_REMOTE(named_modules, "submodules cannot be brought here, use module_rref()")
  WEFT_NOT_REMOTE(clone, "make another RemoteModule and give it this one's state()")
  WEFT_NOT_REMOTE(save, "use state(), or weft::checkpoint")
  WEFT_NOT_REMOTE(load, "use load_state(), or weft::checkpoint")
#undef WEFT_NOT_REMOTE

 private:
  friend struct Codec<RemoteModule>;
  RemoteModule(RRef<M> module, RRef<HostedModule> hosted)
      : AnyRemoteModule(std::move(hosted)), module_(std::move(module)) {}

  template <typename... Args>
  static constexpr auto kForward =
      &detail::ModuleForward<M, weft::detail::Transported<Args>...>::run;

  template <typename... Args>
  static RRef<M> make(Agent& agent, const Placement& where, Args&... args) {
    static_assert(std::is_constructible_v<M, weft::detail::Transported<Args>...>,
                  "the module has no constructor that takes these arguments");
    using Making = detail::ModuleMaking<M, weft::detail::Transported<Args>...>;
    return weft::detail::RRefAccess::create<typename Making::CreationFunction, M>(
        *weft::detail::AgentAccess::core(agent), where.worker(), {}, where.device(), args...);
  }

  RRef<M> module_;
};

/// References to the parameters of a module on this worker, in their order.
WEFT_API std::vector<RRef<at::Tensor>> parameter_rrefs(const torch::nn::Module& module);
WEFT_API std::vector<RRef<at::Tensor>> parameter_rrefs(Agent& agent,
                                                       const torch::nn::Module& module);

}  // namespace weft::nn

namespace weft {

template <typename M>
struct Codec<nn::RemoteModule<M>> {
  static void encode(Encoder& out, const nn::RemoteModule<M>& module) {
    Codec<RRef<M>>::encode(out, module.module_rref());
    Codec<RRef<nn::HostedModule>>::encode(out, module.hosted());
  }
  static nn::RemoteModule<M> decode(Decoder& in) {
    auto module = Codec<RRef<M>>::decode(in);
    auto hosted = Codec<RRef<nn::HostedModule>>::decode(in);
    return nn::RemoteModule<M>(std::move(module), std::move(hosted));
  }
  static void describe(TypeDescription& out) {
    out.add("module");
    Codec<RRef<M>>::describe(out);
  }
};

}  // namespace weft
