// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/acceptor.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "rpc/serving/server.h"

namespace weft::rpc {

namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(5);
// Connections without a hello: so many of strangers, and for each member the first of its own,
// whose hello may take a moment where hundreds of workers share a few processors.
constexpr size_t kMaxStrangers = 64;
constexpr size_t kGuestsPerMember = 2;
constexpr auto kPauseWhenExhausted = std::chrono::milliseconds(100);
constexpr auto kLogInterval = std::chrono::seconds(1);
constexpr int kAcceptsPerEvent = 64;

}  // namespace

// A connection that has not said its hello yet.
class Acceptor::Guest final : public IoClient, public std::enable_shared_from_this<Guest> {
 public:
  Guest(Acceptor& host, std::unique_ptr<transport::Connection> connection)
      : host_(host), link_(detail::make_ref<Link>(std::move(connection), host.runtime_->pool)) {
    link_->decoder().expect_hello();
  }

  bool start() {
    IoLoop& io = host_.runtime_->io;
    token_ = io.add(shared_from_this());
    io.set_due(*this, host_.runtime_->clock->now() + kHelloTimeout);
    try {
      if (io.watch_new(link_->connection(), transport::kReadable, token_)) return true;
    } catch (const std::bad_alloc&) {
      // As if there were no descriptor.
    }
    io.remove(token_);
    return false;
  }

  void on_event(bool, bool) override {
    try {
      switch (link_->receive()) {
        case Link::State::kBroken:
          return leave("left without a hello: " + link_->why_broken());
        case Link::State::kBlocked:
          break;
        case Link::State::kFine:
          if (link_->next_frame()) return on_hello(wire::decode_hello(link_->frame().body));
          break;
      }
    } catch (const Error& error) {
      return leave(error.message());
    } catch (const std::bad_alloc&) {
      return leave("there is no memory for it");
    }
  }

  void on_time(base::Time) override { leave("no hello within 5 s"); }

  /// Closes the connection; the reason is logged.
  void leave(std::string_view why) {
    host_.log_turned_away(link_->connection().remote_address(), "", why);
    host_.runtime_->io.unwatch(link_->connection(), token_);
    link_->close();
    gone();
  }

 private:
  void on_hello(const wire::Hello& hello) {
    const std::string objection = object_to(hello);
    if (!objection.empty()) {
      wire::FrameHeader goodbye{wire::FrameKind::kGoodbye};
      link_->queue(goodbye, std::as_bytes(std::span(objection)));
      link_->flush();
      return leave(objection);
    }
    if (link_->within_frame()) return leave("frames before our hello");
    link_->decoder().expect_any();
    link_->agree_on(hello.features);
    answer();
    host_.runtime_->io.unwatch(link_->connection(), token_);
    const WorkerInfo& caller = host_.runtime_->group.members[static_cast<size_t>(hello.from)].info;
    switch (host_.server_.adopt(link_, caller)) {
      case Server::Adoption::kServed:
        return gone();
      case Server::Adoption::kClosed:  // shutting down: nobody did anything wrong
        link_->close();
        return gone();
      case Server::Adoption::kOutOfDescriptors:
        return leave("no connection can be watched any more");
    }
  }

  // Empty: welcome.
  std::string object_to(const wire::Hello& hello) const {
    const Group& group = host_.runtime_->group;
    const Member& self = host_.runtime_->self();
    if (!wire::common_version(hello)) return wire::describe_versions(hello);
    if (hello.group != group.token) return "a hello of another group";
    if (hello.from < 0 || static_cast<size_t>(hello.from) >= group.members.size() ||
        group.members[static_cast<size_t>(hello.from)].info.name != hello.from_name ||
        group.members[static_cast<size_t>(hello.from)].incarnation != hello.from_incarnation) {
      return fmt::format("no member: \"{}\", rank {}", hello.from_name, hello.from);
    }
    if (hello.to != self.info.id || hello.to_incarnation != self.incarnation) {
      return fmt::format("a hello for rank {}, this is \"{}\"", hello.to, self.info.name);
    }
    return {};
  }

  void answer() {
    const Member& self = host_.runtime_->self();
    wire::Hello hello;
    hello.features = Link::offered_features();
    hello.group = host_.runtime_->group.token;
    hello.from = self.info.id;
    hello.from_incarnation = self.incarnation;
    hello.from_name = self.info.name;
    Encoder body;
    encode_hello(body, hello);
    wire::FrameHeader header{wire::FrameKind::kHello};
    header.id = wire::kHelloMagic;
    link_->queue(header, {}, body);
    link_->flush();
  }

  void gone() {
    host_.runtime_->io.set_due(*this, base::Time::max());
    host_.runtime_->io.remove(token_);
    host_.on_guest_gone(*this);
  }

  Acceptor& host_;
  detail::Ref<Link> link_;
  uint64_t token_ = 0;
};

Acceptor::Acceptor(std::shared_ptr<Runtime> runtime, Server& server,
                   std::unique_ptr<transport::Listener> listener)
    : runtime_(std::move(runtime)), server_(server), listener_(std::move(listener)) {}

void Acceptor::start() {
  const base::MutexLock lock(mutex_);
  token_ = runtime_->io.add(shared_from_this());
  if (!runtime_->io.watch_new(*listener_, transport::kReadable, token_)) {
    runtime_->io.remove(token_);
    throw Error(
        ErrorCode::kLimitExceeded,
        fmt::format("{} cannot accept connections: the system watches no further descriptor",
                    runtime_->name()));
  }
}

void Acceptor::stop() {
  const base::MutexLock lock(mutex_);
  if (!listener_) return;
  runtime_->io.unwatch(*listener_, token_);
  runtime_->io.remove(token_);
  listener_ = nullptr;
}

void Acceptor::on_event(bool, bool) {
  const base::MutexLock lock(mutex_);
  if (!listener_) return;
  try {
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      transport::Listener::Accepted accepted = listener_->accept();
      if (accepted.status == transport::Listener::Accepted::Status::kNone) break;
      if (accepted.status == transport::Listener::Accepted::Status::kExhausted) {
        pause(accepted.why);
        break;
      }
      admit(std::move(accepted.connection));
    }
  } catch (const std::bad_alloc&) {
    pause("there is no memory");
  }
  turn_some_away();
}

void Acceptor::pause(std::string_view why) {
  runtime_->io.set_due(*this, runtime_->clock->now() + kPauseWhenExhausted);
  runtime_->io.watch(*listener_, transport::kNothing, token_);
  log_turned_away("anybody", "cannot accept, trying again in 100 ms: ", why);
}

void Acceptor::on_time(base::Time) {
  const base::MutexLock lock(mutex_);
  if (listener_) runtime_->io.watch(*listener_, transport::kReadable, token_);
}

void Acceptor::admit(std::unique_ptr<transport::Connection> connection) {
  auto guest = std::make_shared<Guest>(*this, std::move(connection));
  if (!guest->start()) return;
  guests_.push_back(guest);
  guest->on_event(true, false);  // a caller sends its hello at once, so it has probably come
}

// The oldest has had the most time to say hello, and gets a last look.
void Acceptor::turn_some_away() {
  const size_t most = kMaxStrangers + kGuestsPerMember * runtime_->group.members.size();
  while (guests_.size() > most) {
    const std::shared_ptr<Guest> oldest = guests_.front();
    oldest->on_event(true, false);
    const bool still_there = !guests_.empty() && guests_.front() == oldest;
    if (still_there) oldest->leave("too many connections without a hello");
  }
}

void Acceptor::on_guest_gone(Guest& guest) {
  auto found = std::find_if(guests_.begin(), guests_.end(),
                            [&guest](auto& each) { return each.get() == &guest; });
  if (found != guests_.end()) guests_.erase(found);
}

// A port scan must not fill the disk: one line a second, with the number of those left out.
void Acceptor::log_turned_away(std::string_view from, std::string_view what, std::string_view why) {
  runtime_->counters.bad_connections.add();
  const base::Time now = runtime_->clock->now();
  if (now < log_again_at_) {
    ++not_logged_;
    return;
  }
  log_again_at_ = now + kLogInterval;
  const uint64_t others = std::exchange(not_logged_, 0);
  if (others > 0) {
    base::log(LogLevel::kWarning, runtime_->name(),
              "turned away a connection from {}: {}{} (and {} more before)", from, what, why,
              others);
  } else {
    base::log(LogLevel::kWarning, runtime_->name(), "turned away a connection from {}: {}{}", from,
              what, why);
  }
}

}  // namespace weft::rpc
