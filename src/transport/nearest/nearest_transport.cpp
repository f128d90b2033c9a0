// SPDX-License-Identifier: BSD-3-Clause
#include "transport/nearest/nearest_transport.h"

#include <map>
#include <utility>

#include "base/mutex.h"
#include "transport/poller.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace weft::transport {

namespace {

constexpr const char* kMark = " shm:";

struct Ways {
  std::string tcp;
  std::string shm;  // empty: there is none

  explicit Ways(const std::string& address) : tcp(address) {
    const size_t mark = address.find(kMark);
    if (mark == std::string::npos) return;
    tcp = address.substr(0, mark);
    shm = address.substr(mark + std::string(kMark).size());
  }
};

class NearestListener final : public Listener {
 public:
  NearestListener(std::unique_ptr<Listener> tcp, std::unique_ptr<Listener> shm)
      : tcp_(std::move(tcp)), shm_(std::move(shm)) {
    poller_.add(*tcp_, kReadable, 0);
    poller_.add(*shm_, kReadable, 1);
  }
  ~NearestListener() override {
    poller_.remove(*tcp_, 0);
    poller_.remove(*shm_, 1);
  }

  Accepted accept() override {
    Accepted accepted = shm_->accept();
    return accepted.status == Accepted::Status::kNone ? tcp_->accept() : std::move(accepted);
  }
  std::string address() const override { return tcp_->address() + kMark + shm_->address(); }

 protected:
  int descriptor() const override { return poller_.descriptor(); }

 private:
  std::unique_ptr<Listener> tcp_;
  std::unique_ptr<Listener> shm_;
  Poller poller_;
};

class NearestTransport final : public Transport {
 public:
  std::unique_ptr<Listener> listen(const std::string& address) override {
    std::unique_ptr<Listener> tcp = tcp_->listen(address);
    try {
      std::unique_ptr<Listener> shm = shm_->listen("");
      return std::make_unique<NearestListener>(std::move(tcp), std::move(shm));
    } catch (const Error&) {
      return tcp;  // this system has no such sockets
    }
  }

  std::unique_ptr<Connection> connect(const std::string& address) override {
    const Ways ways(address);
    if (ways.shm.empty()) {
      avoid(address, "the other worker offers no shared memory");
    } else if (detour(address).empty()) {
      try {
        return shm_->connect(ways.shm);
      } catch (const Refused&) {
        // The process may have ended, too: only TCP, which reaches it from everywhere, tells.
        avoid(address, "the other worker is on another host, or has a network of its own");
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnavailable) avoid(address, error.message());
      }
    }
    return tcp_->connect(ways.tcp);
  }

  bool takes_other_way(const std::string& address, const Connection& failed,
                       const std::string& why) override {
    if (failed.way() != "shm") return false;
    avoid(address, why);
    return true;
  }

  std::string detour(const std::string& address) const override {
    const base::MutexLock lock(mutex_);
    const auto found = avoided_.find(address);
    return found == avoided_.end() ? "" : found->second;
  }

 private:
  void avoid(const std::string& address, const std::string& why) {
    const base::MutexLock lock(mutex_);
    avoided_.emplace(address, why);
  }

  const std::unique_ptr<Transport> tcp_ = make_tcp_transport();
  const std::unique_ptr<Transport> shm_ = make_shm_transport();
  mutable base::Mutex mutex_;
  std::map<std::string, std::string> avoided_ WEFT_GUARDED_BY(mutex_);  // why, by address
};

}  // namespace

std::unique_ptr<Transport> make_nearest_transport() { return std::make_unique<NearestTransport>(); }

}  // namespace weft::transport
