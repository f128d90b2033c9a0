// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/tcp_store.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "weft/error.h"

namespace weft::rendezvous {

namespace {

std::chrono::milliseconds left_until(base::Time deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));  // c10d takes zero for no limit
}

c10::intrusive_ptr<c10d::Store> open_c10d(const std::string& host, uint16_t port,
                                          TcpStore::Role role, base::Time deadline) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = role == TcpStore::Role::kHost;
  options.waitWorkers = false;
  options.timeout = left_until(deadline);
  options.multiTenant = true;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// c10d cannot be asked for the value of a key without waiting for it, but it compares and sets at
// once. This marker is set only where it already is, which is nowhere.
const Bytes& nothing() {
  static const std::string text = "weft: no value";
  static const Bytes bytes(text.begin(), text.end());
  return bytes;
}

}  // namespace

template <typename F>
auto TcpStore::ask(const F& question) {
  try {
    return question();
  } catch (const std::exception& error) {
    usable_ = false;
    throw Error(ErrorCode::kUnavailable,
                fmt::format("the store at {} failed: {}", place_, error.what()));
  }
}

TcpStore::TcpStore(const std::string& host, uint16_t port, Role role, base::Time deadline)
    : place_(fmt::format("{}:{}", host, port)) {
  store_ = ask([&] { return open_c10d(host, port, role, deadline); });
}

void TcpStore::set(const std::string& key, const Bytes& value, base::Time) {
  ask([&] { store_->set(key, value); });
}

std::optional<Bytes> TcpStore::find(const std::string& key, base::Time) {
  Bytes value = ask([&] { return store_->compareSet(key, nothing(), nothing()); });
  if (value == nothing()) return std::nullopt;
  return value;
}

void TcpStore::remove(const std::string& key, base::Time) {
  ask([&] { store_->deleteKey(key); });
}

}  // namespace weft::rendezvous
