// SPDX-License-Identifier: BSD-3-Clause
#include "contract/transport_contract.h"
#include "transport/loopback/loopback_transport.h"

namespace weft::transport {

struct LoopbackBackend {
  static constexpr const char* kAnyAddress = "";
  static constexpr const char* kNobody = "nobody";
  std::unique_ptr<Transport> transport() { return network_->transport(); }
  std::shared_ptr<LoopbackNetwork> network_ = std::make_shared<LoopbackNetwork>();
};
INSTANTIATE_TYPED_TEST_SUITE_P(Loopback, TransportContract, LoopbackBackend);

}  // namespace weft::transport
