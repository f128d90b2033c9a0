// Each connection is a socket pair, so that it can be polled like any other. Faults are applied at
// the sending end, where frames are still whole.
// SPDX-License-Identifier: BSD-3-Clause
#include "transport/loopback/loopback_transport.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "base/mutex.h"
#include "transport/private_descriptor.h"
#include "transport/socket_connection.h"
#include "weft/error.h"
#include "wire/frame.h"

namespace weft::transport {

namespace {

size_t frame_bytes(const std::vector<std::byte>& bytes) {
  wire::FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.flags & wire::kInPieces) return wire::kHeaderBytes;  // other frames have its content
  return wire::kHeaderBytes + header.body_bytes + header.bulk_bytes;
}

}  // namespace

class LoopbackListener;

struct LoopbackNetwork::State {
  explicit State(std::shared_ptr<base::Clock> the_clock) : clock(std::move(the_clock)) {}

  std::shared_ptr<base::Clock> clock;
  base::Mutex mutex;
  FaultPlan plan WEFT_GUARDED_BY(mutex);
  std::map<std::string, LoopbackListener*> listeners WEFT_GUARDED_BY(mutex);
  std::vector<LoopbackConnection*> connections WEFT_GUARDED_BY(mutex);
  uint64_t next_connection WEFT_GUARDED_BY(mutex) = 0;
  uint64_t next_address WEFT_GUARDED_BY(mutex) = 0;
};

// One end of a pair.
class LoopbackConnection final : public SocketConnection {
 public:
  LoopbackConnection(std::shared_ptr<LoopbackNetwork::State> network, PrivateDescriptor socket,
                     FrameInFlight route)
      : SocketConnection(std::move(socket), route.to, "loopback"),
        network_(std::move(network)),
        route_(std::move(route)) {
    const base::MutexLock lock(network_->mutex);
    network_->connections.push_back(this);
  }
  ~LoopbackConnection() override {
    const base::MutexLock lock(network_->mutex);
    std::erase(network_->connections, this);
  }

  IoResult send(const iovec* buffers, int count) override {
    {
      const base::MutexLock lock(network_->mutex);
      if (network_->plan || !gathered_.empty() || !in_flight_.empty()) {
        return send_through_plan(buffers, count);
      }
    }
    return SocketConnection::send(buffers, count);
  }

  // Under the network's lock.
  void deliver_due() {
    const base::Time now = network_->clock->now();
    while (!in_flight_.empty() && in_flight_.front().due <= now) {
      Delivery& next = in_flight_.front();
      while (!next.bytes.empty()) {
        const iovec buffer{next.bytes.data(), next.bytes.size()};
        const IoResult sent = SocketConnection::send(&buffer, 1);
        if (sent.status != IoResult::Status::kDone) return;  // tried again at the next send
        next.bytes.erase(next.bytes.begin(), next.bytes.begin() + static_cast<long>(sent.bytes));
      }
      const bool breaks = next.breaks_after;
      in_flight_.pop_front();
      if (breaks) SocketConnection::close_both_ways();
    }
  }

 private:
  struct Delivery {
    std::vector<std::byte> bytes;
    base::Time due;
    bool breaks_after = false;
  };

  IoResult send_through_plan(const iovec* buffers, int count) WEFT_REQUIRES(network_->mutex) {
    size_t total = 0;
    for (int i = 0; i < count; ++i) {
      const auto* data = static_cast<const std::byte*>(buffers[i].iov_base);
      gathered_.insert(gathered_.end(), data, data + buffers[i].iov_len);
      total += buffers[i].iov_len;
    }
    while (gathered_.size() >= wire::kHeaderBytes && gathered_.size() >= frame_bytes(gathered_)) {
      const auto end = gathered_.begin() + static_cast<long>(frame_bytes(gathered_));
      std::vector<std::byte> frame(gathered_.begin(), end);
      gathered_.erase(gathered_.begin(), end);
      dispatch(std::move(frame));
    }
    deliver_due();
    return {IoResult::Status::kDone, total};
  }

  void dispatch(std::vector<std::byte> frame) WEFT_REQUIRES(network_->mutex) {
    route_.kind = static_cast<uint8_t>(frame[0]);
    // Read the clock before asking the plan: the plan may wake a test, which may advance the clock.
    const base::Time now = network_->clock->now();
    const Fault fault = network_->plan ? network_->plan(route_) : Fault{};
    ++route_.index;
    const base::Time earliest =
        in_flight_.empty() ? base::Time::min() : in_flight_.back().due;  // frames stay in order
    const base::Time due = std::max(earliest, now + fault.delay);
    switch (fault.kind) {
      case Fault::Kind::kDeliver:
      case Fault::Kind::kDelay:
        break;
      case Fault::Kind::kDropConnection:
        in_flight_.push_back({{}, due, true});
        return;
      case Fault::Kind::kTruncate:
        frame.resize(frame.size() / 2);
        in_flight_.push_back({std::move(frame), due, true});
        return;
      case Fault::Kind::kFlip: {
        const size_t bit = fault.bit % (frame.size() * 8);
        frame[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        break;
      }
      case Fault::Kind::kDuplicate:
        in_flight_.push_back({frame, due});
        break;
    }
    in_flight_.push_back({std::move(frame), due});
  }

  std::shared_ptr<LoopbackNetwork::State> network_;
  FrameInFlight route_;
  std::vector<std::byte> gathered_;
  std::deque<Delivery> in_flight_;
};

class LoopbackListener final : public Listener {
 public:
  LoopbackListener(std::shared_ptr<LoopbackNetwork::State> network, std::string address)
      : network_(std::move(network)),
        address_(std::move(address)),
        ready_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {}
  ~LoopbackListener() override {
    const base::MutexLock lock(network_->mutex);
    network_->listeners.erase(address_);
  }

  // Under the network's lock.
  void offer(PrivateDescriptor socket, FrameInFlight route) {
    waiting_.push_back({std::move(socket), std::move(route)});
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(ready_.get(), &one, sizeof one);
  }

  Accepted accept() override {
    std::pair<PrivateDescriptor, FrameInFlight> next;
    {
      const base::MutexLock lock(network_->mutex);
      if (waiting_.empty()) return {Accepted::Status::kNone};
      uint64_t ignored;
      [[maybe_unused]] const ssize_t read_bytes = read(ready_.get(), &ignored, sizeof ignored);
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    return {Accepted::Status::kConnection,
            std::make_unique<LoopbackConnection>(network_, std::move(next.first),
                                                 std::move(next.second))};
  }

  std::string address() const override { return address_; }

 protected:
  int descriptor() const override { return ready_.get(); }

 private:
  std::shared_ptr<LoopbackNetwork::State> network_;
  std::string address_;
  PrivateDescriptor ready_;
  std::deque<std::pair<PrivateDescriptor, FrameInFlight>> waiting_;
};

class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(std::shared_ptr<LoopbackNetwork::State> network)
      : network_(std::move(network)) {}

  std::unique_ptr<Listener> listen(const std::string& wanted) override {
    base::MutexLock lock(network_->mutex);
    const std::string address =
        wanted.empty() ? fmt::format("loopback-{}", ++network_->next_address) : wanted;
    if (network_->listeners.contains(address)) {
      throw Error(ErrorCode::kUnavailable, fmt::format("address is taken: {}", address));
    }
    auto listener = std::make_unique<LoopbackListener>(network_, address);
    network_->listeners[address] = listener.get();
    return listener;
  }

  std::unique_ptr<Connection> connect(const std::string& address) override {
    int pair[2];
    PrivateDescriptor ours;
    FrameInFlight route;
    {
      const base::MutexLock lock(network_->mutex);
      auto found = network_->listeners.find(address);
      if (found == network_->listeners.end()) {
        throw Refused(fmt::format("nobody listens on {}", address));
      }
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        throw Error(ErrorCode::kUnavailable, fmt::format("no socket pair: {}", strerror(errno)));
      }
      ours = PrivateDescriptor(pair[0]);
      route = {"", address, network_->next_connection++, true, 0, 0};
      FrameInFlight back = route;
      std::swap(back.from, back.to);
      back.from_connector = false;
      found->second->offer(PrivateDescriptor(pair[1]), std::move(back));
    }
    return std::make_unique<LoopbackConnection>(network_, std::move(ours), std::move(route));
  }

 private:
  std::shared_ptr<LoopbackNetwork::State> network_;
};

LoopbackNetwork::LoopbackNetwork(std::shared_ptr<base::Clock> clock)
    : state_(std::make_shared<State>(std::move(clock))) {
  std::weak_ptr<State> weak = state_;
  state_->clock->on_advance([weak] {
    if (auto state = weak.lock()) {
      const base::MutexLock lock(state->mutex);
      for (LoopbackConnection* connection : state->connections) connection->deliver_due();
    }
  });
}

LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Transport> LoopbackNetwork::transport() {
  return std::make_unique<LoopbackTransport>(state_);
}

void LoopbackNetwork::set_faults(FaultPlan plan) {
  const base::MutexLock lock(state_->mutex);
  state_->plan = std::move(plan);
}

void LoopbackNetwork::deliver_due() {
  const base::MutexLock lock(state_->mutex);
  for (LoopbackConnection* connection : state_->connections) connection->deliver_due();
}

void LoopbackNetwork::break_all() {
  const base::MutexLock lock(state_->mutex);
  for (LoopbackConnection* connection : state_->connections) connection->close_both_ways();
}

}  // namespace weft::transport
