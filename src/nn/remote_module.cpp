// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>
#include <set>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include "nn/module_state.h"
#include "optim/stepping.h"
#include "rpc/complaint.h"
#include "weft/nn.h"

namespace weft::nn {

namespace {

template <typename Dictionary>
NamedTensors references(Agent& agent, const Dictionary& tensors) {
  NamedTensors named;
  for (const auto& each : tensors) {
    named.emplace_back(each.key(), RRef<at::Tensor>(agent, each.value()));
  }
  return named;
}

std::vector<RRef<at::Tensor>> references_once(Agent& agent,
                                              const std::vector<at::Tensor>& tensors) {
  std::vector<RRef<at::Tensor>> references;
  std::set<c10::TensorImpl*> seen;
  for (const at::Tensor& each : tensors) {
    if (seen.insert(each.unsafeGetTensorImpl()).second) references.emplace_back(agent, each);
  }
  return references;
}

// The lock that keeps optimizers of this worker from changing parameters.
std::unique_lock<std::mutex> alone() {
  return optim::Stepping::of(*weft::detail::AgentAccess::core(current_agent())).lock();
}

// Autograd does not record these calls.
struct Unrecorded {
  c10::AutoGradMode off{false};
};

void throw_if(const rpc::Complaint& complaint, const WorkerInfo& owner) {
  if (complaint) throw complaint.error(owner.name);
}

// The functions below run on the worker that has the module.
NamedTensors hosted_parameters(HostedModule& hosted, bool recurse) {
  return references(current_agent(), hosted.module->named_parameters(recurse));
}
NamedTensors hosted_buffers(HostedModule& hosted, bool recurse) {
  return references(current_agent(), hosted.module->named_buffers(recurse));
}
std::vector<RRef<at::Tensor>> hosted_references(HostedModule& hosted, bool recurse) {
  return references_once(current_agent(), hosted.module->parameters(recurse));
}
std::vector<RRef<at::Tensor>> hosted_buffer_references(HostedModule& hosted, bool recurse) {
  return references_once(current_agent(), hosted.module->buffers(recurse));
}
void hosted_train(HostedModule& hosted, bool on) { hosted.module->train(on); }
bool hosted_is_training(HostedModule& hosted) { return hosted.module->is_training(); }
rpc::Complaint hosted_to(HostedModule& hosted, const std::string& device) {
  const auto lock = alone();
  return rpc::complaint_of([&] { hosted.module->to(at::Device(device)); });
}
void hosted_zero_grad(HostedModule& hosted) {
  const auto lock = alone();
  hosted.module->zero_grad();
}
ModuleState hosted_state(HostedModule& hosted) {
  const auto lock = alone();
  ModuleState state = view_state(*hosted.module);
  for (auto& [name, tensor] : state) tensor = tensor.detach().cpu().clone();
  return state;
}
rpc::Complaint hosted_load_state(HostedModule& hosted, const ModuleState& state) {
  const auto lock = alone();
  return rpc::complaint_of([&] { load_state(*hosted.module, state); });
}

}  // namespace

NamedTensors AnyRemoteModule::named_parameters(bool recurse) const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_parameters>(recurse);
}
NamedTensors AnyRemoteModule::named_buffers(bool recurse) const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_buffers>(recurse);
}
std::vector<RRef<at::Tensor>> AnyRemoteModule::remote_parameters(bool recurse) const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_references>(recurse);
}
std::vector<RRef<at::Tensor>> AnyRemoteModule::buffers(bool recurse) const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_buffer_references>(recurse);
}

void AnyRemoteModule::train(bool on) {
  const Unrecorded calls;
  hosted_.rpc_sync<&hosted_train>(on);
}
bool AnyRemoteModule::is_training() const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_is_training>();
}
void AnyRemoteModule::to(const std::string& device) {
  const Unrecorded calls;
  throw_if(hosted_.rpc_sync<&hosted_to>(device), owner());
}
void AnyRemoteModule::zero_grad() {
  const Unrecorded calls;
  hosted_.rpc_sync<&hosted_zero_grad>();
}
ModuleState AnyRemoteModule::state() const {
  const Unrecorded calls;
  return hosted_.rpc_sync<&hosted_state>();
}
void AnyRemoteModule::load_state(const ModuleState& state) {
  const Unrecorded calls;
  throw_if(hosted_.rpc_sync<&hosted_load_state>(state), owner());
}

std::vector<RRef<at::Tensor>> parameter_rrefs(Agent& agent, const torch::nn::Module& module) {
  return references_once(agent, module.parameters());
}
std::vector<RRef<at::Tensor>> parameter_rrefs(const torch::nn::Module& module) {
  return parameter_rrefs(current_agent(), module);
}

std::optional<at::Device> detail::accelerator_of(const torch::nn::Module& module) {
  // Without CUDA there is no accelerator, and the search would cost more than a small module.
  if (!at::hasCUDA()) return std::nullopt;
  for (const at::Tensor& each : module.parameters()) {
    if (!each.is_cpu()) return each.device();
  }
  for (const at::Tensor& each : module.buffers()) {
    if (!each.is_cpu()) return each.device();
  }
  return std::nullopt;
}

}  // namespace weft::nn
