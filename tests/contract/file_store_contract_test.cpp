// SPDX-License-Identifier: BSD-3-Clause
#include "base/temporary_directory.h"
#include "contract/store_contract.h"
#include "rendezvous/file_store.h"

namespace weft::rendezvous {

struct FilePlace {
  std::unique_ptr<Store> open() {
    return std::make_unique<FileStore>(directory.path() + "/store",
                                       std::chrono::steady_clock::now() + std::chrono::seconds(30));
  }
  base::TemporaryDirectory directory{"weft-test"};
};
INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreContract, FilePlace);

}  // namespace weft::rendezvous
