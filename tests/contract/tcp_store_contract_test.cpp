// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include "contract/store_contract.h"
#include "rendezvous/tcp_store.h"
#include "support/free_port.h"

namespace weft::rendezvous {

struct TcpPlace {
  std::unique_ptr<Store> open() {
    const auto role = hosted.exchange(true) ? TcpStore::Role::kGuest : TcpStore::Role::kHost;
    return std::make_unique<TcpStore>("localhost", port, role,
                                      std::chrono::steady_clock::now() + std::chrono::seconds(30));
  }
  uint16_t port = test::free_port();
  std::atomic<bool> hosted{false};
};
INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, StoreContract, TcpPlace);

}  // namespace weft::rendezvous
