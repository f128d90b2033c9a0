// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/store.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "weft/error.h"

namespace weft::rendezvous {

namespace {

std::string environment(const char* variable) {
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

c10::intrusive_ptr<c10d::Store> open_tcp(const std::string& host, uint16_t port,
                                         const Invitation& invitation) {
  // torchrun hosts the store itself and says so.
  const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = invitation.rank == 0 && !(hosted && std::string(hosted) == "True");
  options.numWorkers = static_cast<size_t>(invitation.world_size);
  options.waitWorkers = false;
  options.timeout = invitation.timeout;
  options.multiTenant = true;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

c10::intrusive_ptr<c10d::Store> open_by_method(const Invitation& invitation) {
  const std::string& method = invitation.method;
  if (method.starts_with("env://")) {
    const std::string host = environment("MASTER_ADDR");
    return open_tcp(host, parse_port(environment("MASTER_PORT"), "MASTER_PORT"), invitation);
  }
  if (method.starts_with("tcp://")) {
    const std::string address = method.substr(6);
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("tcp://host:port wanted: {}", method));
    }
    return open_tcp(address.substr(0, colon), parse_port(address.substr(colon + 1), method),
                    invitation);
  }
  if (method.starts_with("file://") && method.size() > 7) {
    return c10::make_intrusive<c10d::FileStore>(method.substr(7), invitation.world_size);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("env://, tcp://host:port or file:///path wanted: \"{}\"", method));
}

// Leaked: the rank that hosts a store hosts it until its process ends.
using StoreKey = std::pair<std::string, int>;
std::mutex mutex;
std::map<StoreKey, OpenStore>& stores() {
  static auto* leaked = new std::map<StoreKey, OpenStore>;
  return *leaked;
}

StoreKey key_of(const Invitation& invitation) {
  std::string method = invitation.method;
  if (method.starts_with("env://")) {
    method += environment("MASTER_ADDR");
    method += ":" + environment("MASTER_PORT");
  }
  return {method, invitation.rank};
}

}  // namespace

OpenStore open_store(const Invitation& invitation) {
  const StoreKey key = key_of(invitation);
  {
    std::lock_guard lock(mutex);
    auto found = stores().find(key);
    if (found != stores().end()) {
      ++found->second.earlier_uses;
      return found->second;
    }
  }
  OpenStore opened;
  try {
    opened.store = open_by_method(invitation);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("cannot open the store of {}: {}", invitation.method, error.what()));
  }
  std::lock_guard lock(mutex);
  return stores().try_emplace(key, opened).first->second;
}

void forget_use(const Invitation& invitation) {
  std::lock_guard lock(mutex);
  auto found = stores().find(key_of(invitation));
  if (found == stores().end()) return;
  // A store that could not be used is opened anew.
  if (found->second.earlier_uses-- == 0) stores().erase(found);
}

}  // namespace weft::rendezvous
