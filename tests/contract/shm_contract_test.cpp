// SPDX-License-Identifier: BSD-3-Clause
#include "contract/transport_contract.h"
#include "transport/shm/shm_transport.h"

namespace weft::transport {

struct ShmBackend {
  static constexpr const char* kAnyAddress = "";
  static constexpr const char* kNobody = "weft-nobody";
  std::unique_ptr<Transport> transport() { return make_shm_transport(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, TransportContract, ShmBackend);

}  // namespace weft::transport
