// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/agent_extension.h"

#include "rpc/companion.h"

namespace weft::rpc {

namespace {
std::vector<MakeExtension>& registered() {
  static auto* leaked = new std::vector<MakeExtension>;
  return *leaked;
}
}  // namespace

detail::Ref<Companion> AgentExtension::on_note(const WorkerInfo&, std::span<const std::byte>,
                                               std::span<at::Tensor>) {
  return {};
}

size_t register_agent_extension(MakeExtension make) {
  registered().push_back(make);
  return registered().size() - 1;
}

std::vector<std::shared_ptr<AgentExtension>> make_agent_extensions(AgentCore& agent) {
  std::vector<std::shared_ptr<AgentExtension>> extensions;
  for (const MakeExtension make : registered()) extensions.push_back(make(agent));
  return extensions;
}

}  // namespace weft::rpc
