// SPDX-License-Identifier: BSD-3-Clause
#include "contract/transport_contract.h"
#include "transport/tcp/tcp_transport.h"

namespace weft::transport {

struct TcpBackend {
  static constexpr const char* kAnyAddress = "127.0.0.1:0";
  static constexpr const char* kNobody = "127.0.0.1:1";
  std::unique_ptr<Transport> transport() { return make_tcp_transport(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, TransportContract, TcpBackend);

}  // namespace weft::transport
