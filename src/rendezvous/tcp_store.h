// c10d's TCPStore, where the members of a group meet at a host and port: env://, tcp://host:port.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rendezvous/store.h"

namespace weft::rendezvous {

class TcpStore final : public Store {
 public:
  enum class Role { kHost, kGuest };

  /// The host serves the store in this process until it is destroyed; a guest waits for the host.
  TcpStore(const std::string& host, uint16_t port, Role role, base::Time deadline);

  void set(const std::string& key, const Bytes& value, base::Time deadline) override;
  std::optional<Bytes> find(const std::string& key, base::Time deadline) override;
  void remove(const std::string& key, base::Time deadline) override;
  bool usable() const override { return usable_; }

 private:
  template <typename Question>
  auto ask(base::Time deadline, Question question);

  const std::string place_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool usable_ = true;
};

}  // namespace weft::rendezvous
