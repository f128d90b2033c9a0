// What must not compile, and what the compiler must say about it.
// SPDX-License-Identifier: BSD-3-Clause
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <weft/nn.h>
#include <weft/optim.h>

using torch::nn::LinearImpl;
using weft::nn::RemoteModule;

void unsupported(RemoteModule<LinearImpl>& module) {
  module.parameters();             // says: use remote_parameters()
  module.register_buffer("x");     // says: register_buffer of a remote module
  module.register_parameter();     // says: register_parameter of a remote module
  module.register_module();        // says: register_module of a remote module
  module.apply([](auto&) {});      // says: a function cannot travel
  module.children();               // says: children of a remote module
  module.named_children();         // says: named_children of a remote module
  module.modules();                // says: of a remote module: submodules cannot be brought here
  module.named_modules();          // says: named_modules of a remote module
  module.clone();                  // says: give it this one's state()
  module.save();                   // says: use state(), or weft::checkpoint
  module.load();                   // says: use load_state(), or weft::checkpoint
  module.forward("no tensor", 3);  // says: the module has no forward that takes these arguments
}

void holder() {
  RemoteModule<torch::nn::Linear> module;  // says: such as torch::nn::LinearImpl for
}

void no_module() {
  RemoteModule<int> module;  // says: a remote module must be a torch::nn::Module
}

void no_constructor(weft::Agent& agent) {
  RemoteModule<LinearImpl>(agent, "ps", "a text");  // says: the module has no constructor that
}

void lbfgs(std::vector<weft::RRef<at::Tensor>> parameters) {
  using torch::optim::LBFGS;
  weft::optim::DistributedOptimizer<LBFGS> optimizer(parameters, 1);  // says: its line search
}
