// SPDX-License-Identifier: BSD-3-Clause
#include "support/loopback_group.h"

#include <thread>
#include <utility>

#include "rpc/agent_core.h"

namespace weft::test {

LoopbackGroup::LoopbackGroup(const std::vector<std::string>& names, const Options& options,
                             std::shared_ptr<base::Clock> clock)
    : network_(std::make_shared<transport::LoopbackNetwork>(clock)) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::unique_ptr<transport::Listener>> listeners;
  rendezvous::Group group;
  group.token = 4711;
  for (size_t i = 0; i < names.size(); ++i) {
    transports.push_back(network_->transport());
    listeners.push_back(transports.back()->listen(""));
    addresses_.push_back(listeners.back()->address());
    group.members.push_back({{names[i], static_cast<int>(i)}, addresses_.back(), 1000 + i});
  }
  for (size_t i = 0; i < names.size(); ++i) {
    group.self = static_cast<int>(i);
    agents_.push_back(std::make_unique<Agent>(rpc::AgentCore::start(
        group, options, clock, std::move(transports[i]), std::move(listeners[i]))));
    detail::AgentAccess::core(*agents_.back())->open();
  }
}

LoopbackGroup::~LoopbackGroup() = default;

void LoopbackGroup::shut_down() {
  std::vector<std::thread> threads;
  for (auto& agent : agents_) threads.emplace_back([&agent] { agent->shutdown(); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weft::test
