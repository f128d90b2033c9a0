// Two workers: one calls functions of the other.
// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>

#include <weft/rpc.h>

struct Summary {  // an aggregate travels as it is
  double mean;
  std::vector<int64_t> shape;
};
Summary summarize(const at::Tensor& x) { return {x.mean().item<double>(), x.sizes().vec()}; }
int64_t rows(const at::Tensor& x) { return x.sizes().vec().at(0); }

int run_worker(int rank, int) {
  weft::init_rpc("worker" + std::to_string(rank));
  if (rank == 0) {
    weft::Future<Summary> later = weft::rpc_async<summarize>("worker1", at::ones({2, 3}));
    std::cout << weft::rpc_sync<rows>("worker1", at::ones({4})) << '\n';  // 4
    std::cout << later.wait().mean << '\n';                               // 1
    try {
      weft::rpc_sync<rows>("worker1", at::scalar_tensor(1));
    } catch (const weft::Error& error) {
      std::cout << error.what() << '\n';  // kRemoteError: std::out_of_range on worker1: ...
    }
  }
  weft::shutdown();  // serves until nobody needs this worker any more
  return 0;
}

int main(int argc, char** argv) { return weft::launch(argc, argv, 2, run_worker); }
