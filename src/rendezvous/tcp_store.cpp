// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/tcp_store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "rendezvous/reach.h"
#include "rendezvous/run_until.h"
#include "weft/error.h"

namespace weft::rendezvous {

namespace {

using C10dStore = c10::intrusive_ptr<c10d::Store>;

// A question that is asked shortly before the deadline has at least so much time for its answer.
constexpr auto kLeastPatience = std::chrono::milliseconds(250);

// A longer one could overflow in c10d.
constexpr base::Duration kLongestTimeout = std::chrono::hours(24);

C10dStore open_c10d(const std::string& host, uint16_t port, TcpStore::Role role,
                    base::Time deadline) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = role == TcpStore::Role::kHost;
  options.waitWorkers = false;
  // At least so much, also if the deadline is nearer: c10d rounds its timeout down to whole
  // seconds, and with one second it gives up after the first attempt. ask() keeps the deadline.
  const auto left = std::chrono::ceil<std::chrono::seconds>(
      std::min(deadline - std::chrono::steady_clock::now(), kLongestTimeout));
  options.timeout = std::max(std::chrono::seconds(10), left);
  options.multiTenant = true;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// c10d has no way to read the value of a key without waiting for it, but its compare-and-set does
// not wait. find() asks it to replace this text by itself. No key has this value, so nothing is
// ever set.
const Bytes& nothing() {
  static const std::string text = "weft: no value";
  static const Bytes bytes(text.begin(), text.end());
  return bytes;
}

// The error text of c10d without its stack trace.
std::string sentence_of(const std::exception& error) {
  const auto* from_c10 = dynamic_cast<const c10::Error*>(&error);
  const std::string text = from_c10 ? from_c10->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

// Asks on another thread: c10d waits for its server without a limit, also if that is stopped or is
// not a store at all.
template <typename Question>
auto TcpStore::ask(base::Time deadline, Question question) {
  std::string failure = "does not answer";
  const base::Time patience = std::chrono::steady_clock::now() + kLeastPatience;
  try {
    auto answer = run_until(std::max(deadline, patience), std::move(question));
    if (answer) return std::move(*answer);
  } catch (const std::exception& error) {
    failure = "failed: " + sentence_of(error);
  }
  usable_ = false;
  throw Error(ErrorCode::kUnavailable, fmt::format("the store at {} {}", place_, failure));
}

TcpStore::TcpStore(const std::string& host, uint16_t port, Role role, base::Time deadline)
    : place_(fmt::format("{}:{}", host, port)) {
  if (role == Role::kHost) {
    // The server listens on all interfaces of this host, so its own client uses 127.0.0.1.
    store_ = ask(deadline,
                 [port, deadline] { return open_c10d("127.0.0.1", port, Role::kHost, deadline); });
  }
  const std::string reason = wait_for_listener(host, port, deadline);
  if (!reason.empty()) {
    const char* hint =
        role == Role::kHost
            ? "this process hosts the store, so it must be an address of this host"
            : "rank 0 or torchrun, which hosts the store, did not come or is elsewhere";
    throw Error(ErrorCode::kUnavailable,
                fmt::format("nobody answers at {} ({}): {}", place_, reason, hint));
  }
  if (role == Role::kGuest) {
    store_ = ask(deadline,
                 [host, port, deadline] { return open_c10d(host, port, Role::kGuest, deadline); });
  }
}

void TcpStore::set(const std::string& key, const Bytes& value, base::Time deadline) {
  // c10d's set() has no answer: the value may be on its way when it returns. The server takes what
  // comes over one connection in order, so the answer to a question after it says that it is there.
  ask(deadline, [store = store_, key, value] {
    store->set(key, value);
    return store->compareSet(key, nothing(), nothing());
  });
}

std::optional<Bytes> TcpStore::find(const std::string& key, base::Time deadline) {
  Bytes value =
      ask(deadline, [store = store_, key] { return store->compareSet(key, nothing(), nothing()); });
  if (value == nothing()) return std::nullopt;
  return value;
}

void TcpStore::remove(const std::string& key, base::Time deadline) {
  ask(deadline, [store = store_, key] { return store->deleteKey(key); });
}

}  // namespace weft::rendezvous
