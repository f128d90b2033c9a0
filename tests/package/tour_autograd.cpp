// Distributed autograd: one backward pass over several workers equals a local one.
#include <string>

#include <torch/torch.h>
#include <weft/autograd.h>

#include "check.h"

at::Tensor scaled_sum(at::Tensor a, at::Tensor b) { return (a * b).sum(0); }

// Its own parameter takes part, and it calls on to another worker: three workers in one graph.
at::Tensor weight;
at::Tensor through(at::Tensor x, std::string next) {
  if (!weight.defined()) weight = torch::full({3}, 2.0, torch::requires_grad());
  return weft::rpc_sync<scaled_sum>(next, x * weight, x);
}
at::Tensor weight_gradient(int64_t context_id) {
  return weft::autograd::gradient(context_id, weight);
}

int run_worker(int rank, int) {
  weft::init_rpc("worker" + std::to_string(rank));
  if (rank == 0) {
    at::Tensor x = torch::rand({4, 3}, torch::requires_grad());
    at::Tensor local_weight = torch::full({3}, 2.0, torch::requires_grad());
    at::Tensor expected = ((x * local_weight * x).sum(0)).sum();
    expected.backward();

    {
      weft::autograd::Context context;
      at::Tensor loss = weft::rpc_sync<through>("worker1", x, "worker2").sum();
      at::Tensor unused =
          weft::rpc_sync<scaled_sum>("worker2", x, x);  // never part of the loss; must not hang
      CHECK_THAT(at::allclose(loss, expected));
      context.backward({loss});

      CHECK_THAT(at::allclose(context.gradient(x), x.grad()));
      CHECK_THAT(context.gradients().size() == 1);
      CHECK_THAT(at::allclose(weft::rpc_sync<weight_gradient>("worker1", context.id()),
                              local_weight.grad()));
    }
    // Gradients live in the context; .grad is the local run's, untouched.
    CHECK_THAT(at::allclose(x.grad(), (2 * x * local_weight).detach()));

    // Errors name the mistake.
    weft::autograd::Context context;
    CHECK_FAILS_WITH(context.backward({x}), weft::ErrorCode::kInvalidArgument);  // not a scalar
    CHECK_FAILS_WITH(context.backward({torch::ones({})}),
                     weft::ErrorCode::kInvalidArgument);  // no grad
  }
  weft::shutdown();
  if (rank == 0) std::puts("ok");
  return 0;
}

int main(int argc, char** argv) { return weft::launch(argc, argv, 3, run_worker); }
