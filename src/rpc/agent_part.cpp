// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/agent_part.h"

#include "rpc/companion.h"

namespace weft::rpc {

namespace {
std::vector<MakePart>& registered() {
  static auto* leaked = new std::vector<MakePart>;
  return *leaked;
}
}  // namespace

detail::Ref<Companion> AgentPart::on_note(const WorkerInfo&, std::span<const std::byte>,
                                          std::span<at::Tensor>) {
  return {};
}

size_t register_agent_part(MakePart make) {
  registered().push_back(make);
  return registered().size() - 1;
}

std::vector<std::shared_ptr<AgentPart>> make_agent_parts(AgentCore& agent) {
  std::vector<std::shared_ptr<AgentPart>> parts;
  for (const MakePart make : registered()) parts.push_back(make(agent));
  return parts;
}

}  // namespace weft::rpc
