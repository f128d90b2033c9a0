// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/open_stores.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/fork.h"
#include "base/mutex.h"
#include "rendezvous/file_store.h"
#include "rendezvous/tcp_store.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

std::string needed_from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("env:// needs the environment variable {}", variable));
  }
  return value;
}

uint16_t parse_port(const std::string& text, const std::string& method) {
  const bool digits = !text.empty() && text.size() <= 5 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  const int port = digits ? std::stoi(text) : 0;
  if (port < 1 || port > 65535) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("no port: \"{}\" in {}", text, method));
  }
  return static_cast<uint16_t>(port);
}

bool is_file(const Invitation& invitation) {
  return invitation.method.starts_with("file://") && invitation.method.size() > 7;
}

bool hosts_store(const Invitation& invitation) {
  // torchrun hosts the store itself and sets this variable.
  const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return !is_file(invitation) && invitation.rank == 0 && !(hosted && std::string(hosted) == "True");
}

std::shared_ptr<Store> open_tcp(const std::string& host, uint16_t port,
                                const Invitation& invitation, base::Time deadline) {
  const auto role = hosts_store(invitation) ? TcpStore::Role::kHost : TcpStore::Role::kGuest;
  return std::make_shared<TcpStore>(host, port, role, deadline);
}

std::shared_ptr<Store> open_file(const std::string& path, base::Time deadline) {
  if (path.front() != '/') {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("file:// needs an absolute path, the same for every member: \"{}\"", path));
  }
  return std::make_shared<FileStore>(path, deadline);
}

std::shared_ptr<Store> open_by_method(const Invitation& invitation, base::Time deadline) {
  const std::string& method = invitation.method;
  if (method.starts_with("env://")) {
    const std::string host = needed_from_environment("MASTER_ADDR");
    const std::string port = needed_from_environment("MASTER_PORT");
    return open_tcp(host, parse_port(port, "MASTER_PORT"), invitation, deadline);
  }
  if (method.starts_with("tcp://")) {
    const std::string address = method.substr(6);
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("tcp://host:port wanted: {}", method));
    }
    return open_tcp(address.substr(0, colon), parse_port(address.substr(colon + 1), method),
                    invitation, deadline);
  }
  if (is_file(invitation)) return open_file(method.substr(7), deadline);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("env://, tcp://host:port or file:///path wanted: \"{}\"", method));
}

struct Place {
  std::shared_ptr<Store> kept;  // null unless this process hosts it
  int uses = 0;
};

// Leaked: a process that hosts a store hosts it until it ends.
using PlaceKey = std::pair<std::string, int>;
base::Mutex places_mutex;
std::map<PlaceKey, Place>& places() {
  static auto* leaked = new std::map<PlaceKey, Place>;
  return *leaked;
}

PlaceKey place_of(const Invitation& invitation) {
  std::string method = invitation.method;
  if (method.starts_with("env://")) {
    method += needed_from_environment("MASTER_ADDR");
    method += ":" + needed_from_environment("MASTER_PORT");
  }
  // A forked child does not have the threads of a store that its parent hosts.
  if (base::fork_depth() > 0) method += fmt::format("#fork{}", base::fork_depth());
  return {method, invitation.rank};
}

std::shared_ptr<Store> kept_store(const PlaceKey& key) {
  const base::MutexLock lock(places_mutex);
  auto found = places().find(key);
  return found == places().end() ? nullptr : found->second.kept;
}

}  // namespace

OpenStore open_store(const Invitation& invitation, base::Time deadline) {
  const PlaceKey key = place_of(invitation);
  std::shared_ptr<Store> store = kept_store(key);
  if (!store) store = open_by_method(invitation, deadline);
  const base::MutexLock lock(places_mutex);
  Place& place = places()[key];
  if (hosts_store(invitation)) place.kept = store;
  return {std::move(store), place.uses++};
}

void forget_use(const Invitation& invitation) {
  const base::MutexLock lock(places_mutex);
  auto found = places().find(place_of(invitation));
  if (found == places().end()) return;
  Place& place = found->second;
  --place.uses;
  // Open a store anew that has become unusable.
  const bool broken = place.kept && !place.kept->usable();
  if (place.uses == 0 || broken) place.kept = nullptr;
}

}  // namespace weft::rendezvous
