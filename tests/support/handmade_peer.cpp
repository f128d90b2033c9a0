// SPDX-License-Identifier: BSD-3-Clause
#include "support/handmade_peer.h"

#include <stdexcept>
#include <utility>

#include "rpc/agent_core.h"
#include "transport/poller.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace weft::test {

namespace {

using rpc::Link;
using wire::FrameKind;

constexpr uint64_t kGroup = 4711;
constexpr uint64_t kWorkersIncarnation = 1000;
constexpr uint64_t kOwnIncarnation = 1001;
constexpr auto kEndsAHang = std::chrono::seconds(60);

}  // namespace

HandmadePeer::HandmadePeer(Way way)
    : way_(way),
      network_(std::make_shared<transport::LoopbackNetwork>()),
      transport_(make_transport()) {
  const std::string any_address = way == Way::kTcp ? "127.0.0.1:0" : "";
  listener_ = transport_->listen(any_address);
  std::unique_ptr<transport::Transport> its = make_transport();
  std::unique_ptr<transport::Listener> its_listener = its->listen(any_address);
  address_ = its_listener->address();
  rendezvous::Group group;
  group.token = kGroup;
  group.members = {{{"worker", 0}, address_, kWorkersIncarnation},
                   {{"other", 1}, listener_->address(), kOwnIncarnation}};
  worker_ = std::make_unique<Agent>(rpc::AgentCore::start(
      group, {}, std::make_shared<base::SteadyClock>(), std::move(its), std::move(its_listener)));
  detail::AgentAccess::core(*worker_)->open();
}

std::unique_ptr<transport::Transport> HandmadePeer::make_transport() const {
  switch (way_) {
    case Way::kLoopback:
      break;
    case Way::kTcp:
      return transport::make_tcp_transport();
    case Way::kSharedMemory:
      return transport::make_shm_transport();
  }
  return network_->transport();
}

HandmadePeer::~HandmadePeer() { worker_->shutdown_now(); }

detail::Ref<Link> HandmadePeer::connect() { return link_of(transport_->connect(address_)); }

detail::Ref<Link> HandmadePeer::accept() {
  listener_->wait(transport::kReadable, kEndsAHang);
  return link_of(listener_->accept().connection);
}

detail::Ref<Link> HandmadePeer::call_worker() {
  detail::Ref<Link> link = connect();
  say(*link, hello());
  if (next(*link) != FrameKind::kHello) throw std::runtime_error("not welcome");
  return link;
}

detail::Ref<Link> HandmadePeer::serve_worker() {
  detail::Ref<Link> link = accept();
  if (next(*link) != FrameKind::kHello) throw std::runtime_error("no hello came");
  say(*link, hello());
  return link;
}

wire::Hello HandmadePeer::hello() const {
  wire::Hello hello;
  hello.group = kGroup;
  hello.from = 1;
  hello.from_incarnation = kOwnIncarnation;
  hello.from_name = "other";
  hello.to_incarnation = kWorkersIncarnation;
  return hello;
}

void HandmadePeer::say(Link& link, const wire::Hello& hello, std::string behind_it) {
  Encoder body;
  encode_hello(body, hello);
  body.write(behind_it.data(), behind_it.size());
  wire::FrameHeader header{FrameKind::kHello};
  header.id = wire::kHelloMagic;
  send(link, header, {}, body);
}

void HandmadePeer::send(Link& link, const wire::FrameHeader& header,
                        std::span<const std::byte> prelude, const Encoder& value) {
  link.queue(header, prelude, value);
  link.flush();
}

void HandmadePeer::send_failed(Link& link, uint64_t call, const wire::FailedReply& failed) {
  Encoder body;
  encode_failed(body, failed);
  send(link, {FrameKind::kReply, wire::kFailed, 0, 0, call}, {}, body);
}

std::optional<FrameKind> HandmadePeer::next(Link& link) {
  const auto until = std::chrono::steady_clock::now() + kEndsAHang;
  while (!link.next_frame()) {
    if (link.wait_and_receive() == Link::State::kBroken) return std::nullopt;
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("no frame came");
  }
  return link.frame().header.kind;
}

std::string HandmadePeer::text(Link& link) {
  const auto body = link.frame().body;
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

detail::Ref<Link> HandmadePeer::link_of(std::unique_ptr<transport::Connection> connection) {
  return detail::make_ref<Link>(std::move(connection), std::make_shared<wire::ReceivePool>(0));
}

}  // namespace weft::test
