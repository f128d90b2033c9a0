// SPDX-License-Identifier: BSD-3-Clause
#include "weft/agent.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/meeting.h"
#include "rpc/agent_core.h"
#include "transport/nearest/nearest_transport.h"
#include "transport/tcp/tcp_address.h"
#include "transport/tcp/tcp_transport.h"

namespace weft {

namespace {

constexpr auto kPatience = std::chrono::milliseconds(500);

void check(const Options& options) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw Error(ErrorCode::kInvalidArgument, what);
  };
  require(options.max_handler_threads >= std::max<size_t>(1, options.handler_threads) + 2,
          "options.max_handler_threads must exceed handler_threads by two at least");
  require(options.connections_per_peer <= rpc::Runtime::kMostConnections,
          "options.connections_per_peer must be 8 at most");
  require(options.default_timeout.count() >= 0, "options.default_timeout must not be negative");
  require(options.init_timeout.count() > 0, "options.init_timeout must be positive");
  require(options.spin.count() >= 0, "options.spin must not be negative");
  require(options.heartbeat_interval.count() > 0, "options.heartbeat_interval must be positive");
  require(options.suspect_after >= options.heartbeat_interval &&
              options.dead_after > options.suspect_after,
          "options: heartbeat_interval <= suspect_after < dead_after must hold");
  require(options.rref_lease >= std::chrono::milliseconds(30),
          "options.rref_lease must be at least 30 ms");
  require(options.window_calls > 0 && options.window_bytes > 0,
          "options.window_calls and window_bytes must be positive");
  require(options.max_call_depth > 0 && options.max_call_depth < 60'000,
          "options.max_call_depth must lie between 1 and 60,000");
}

std::string listen_address(const Options& options) {
  const char* from_environment = std::getenv("WEFT_ADDRESS");
  std::string address = !options.address.empty() ? options.address
                        : from_environment       ? from_environment
                                                 : "127.0.0.1";
  const bool bare_v6 = address.find(':') != address.rfind(':') && address.front() != '[';
  if (bare_v6) address = "[" + address + "]";
  const bool has_port = address.rfind(':') != std::string::npos && address.back() != ']';
  address = has_port ? address : address + ":0";
  if (transport::TcpAddress::parse(address).is_any()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the address is what others connect to; name an interface, not \"{}\"",
                            address));
  }
  return address;
}

std::unique_ptr<transport::Transport> make_transport(Options::Transport wanted) {
  if (wanted == Options::Transport::kDefault) {
    const char* from_environment = std::getenv("WEFT_TRANSPORT");
    const std::string said = from_environment ? from_environment : "nearest";
    if (said != "tcp" && said != "nearest") {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("WEFT_TRANSPORT is \"{}\"; say tcp or nearest", said));
    }
    wanted = said == "tcp" ? Options::Transport::kTcp : Options::Transport::kNearest;
  }
  return wanted == Options::Transport::kTcp ? transport::make_tcp_transport()
                                            : transport::make_nearest_transport();
}

}  // namespace

std::unique_ptr<Agent> Agent::join(const std::string& name, const Options& options,
                                   const std::function<void(Agent&)>& before_serving) {
  rendezvous::check_name(name);
  check(options);
  const rendezvous::Invitation invitation = rendezvous::read_invitation(
      options.init_method, options.rank, options.world_size,
      std::chrono::duration_cast<std::chrono::milliseconds>(options.init_timeout));
  auto transport = make_transport(options.transport);
  auto listener = transport->listen(listen_address(options));
  rendezvous::Member self{{name, invitation.rank}, listener->address(), rendezvous::random_id()};
  rendezvous::Group group = rendezvous::meet(invitation, self);
  auto agent = std::make_unique<Agent>(
      rpc::AgentCore::start(std::move(group), options, std::make_shared<base::SteadyClock>(),
                            std::move(transport), std::move(listener)));
  if (before_serving) before_serving(*agent);
  agent->core_->open();
  return agent;
}

Agent::Agent(std::shared_ptr<rpc::AgentCore> core) : core_(std::move(core)) {
  core_->set_facade(this);
}

Agent::~Agent() {
  if (core_->runtime().is_forked_copy()) {
    // Leaked: its threads are not in this process, and its locks may be held by them.
    new std::shared_ptr<rpc::AgentCore>(std::move(core_));
    return;
  }
  core_->shutdown_now(kPatience);
  core_->set_facade(nullptr);
}

const WorkerInfo& Agent::info() const { return core_->runtime().self().info; }
WorkerInfo Agent::info(const Destination& worker) const { return core_->peer(worker).info(); }
const std::vector<WorkerInfo>& Agent::members() const { return core_->members(); }
DebugInfo Agent::debug_info() const { return core_->debug_info(); }

void Agent::set_default_timeout(Timeout timeout) {
  if (timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a default timeout of {} ns", timeout.count()));
  }
  core_->runtime().default_timeout.store(timeout.count(), std::memory_order_relaxed);
}

ShutdownReport Agent::shutdown() { return core_->shutdown(); }
void Agent::shutdown_now() { core_->shutdown_now(kPatience); }

void Agent::start_call(detail::OutgoingCall& call, const detail::FunctionEntry& function,
                       const Destination& to, Urgency urgency, Encoder& arguments) {
  core_->start_call(call, function, to, urgency == Urgency::kCallerWaits, arguments);
}

void Agent::barrier(const std::vector<std::string>& workers, Timeout timeout) {
  core_->meetings().meet({}, workers, timeout);
}

std::map<std::string, Agent::Part> Agent::gather(const Encoder& mine,
                                                 const std::vector<std::string>& workers,
                                                 Timeout timeout) {
  rpc::Contribution contribution;
  const auto* data = reinterpret_cast<const uint8_t*>(mine.payload().data());
  contribution.bytes.assign(data, data + mine.payload().size());
  for (size_t i = 0; i < mine.tensors().size(); ++i) {
    const at::Tensor& tensor = mine.tensors()[i].keep;
    contribution.tensors.push_back(tensor);
    if (tensor.defined() && tensor.is_sparse()) i += 2;  // its indices and values follow it
  }
  std::map<std::string, Part> all;
  for (auto& [name, gathered] : core_->meetings().meet(std::move(contribution), workers, timeout)) {
    all[name] = {std::move(gathered.bytes), std::move(gathered.tensors)};
  }
  return all;
}

}  // namespace weft
