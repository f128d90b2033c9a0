// The roles every benchmark of weft has: a callee that serves, a caller that starts, measures on
// command and shuts down. Through the public API alone.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <weft/rpc.h>

#include "support/program.h"

namespace bench {

inline void nop() {}
inline at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
inline at::Tensor neg(const at::Tensor& a) { return a.neg(); }
inline at::Tensor same(at::Tensor a) { return a; }

/// The arguments of a role: how long to spin, and "memory" if tensors are to be made in shared
/// memory.
inline void start_worker(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string& spin = arguments.at(0);
  if (arguments.at(1) == "memory") weft::use_shared_allocator();
  weft::Options options;
  if (spin != "default") options.spin = std::chrono::microseconds(std::stoi(spin));
  weft::init_rpc(name, options);
  announce("ready");
}

inline void run_weft_callee(const std::vector<std::string>& arguments) {
  start_worker("callee", arguments);
  // Serves until the input ends, not inside shutdown(): what is measured is a worker at work.
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  weft::shutdown();
}

inline void run_weft_caller(const std::vector<std::string>& arguments,
                            const std::map<std::string, Command>& commands) {
  start_worker("caller", arguments);
  const at::Tensor x = at::arange(4, at::kFloat);
  TORCH_CHECK(at::equal(weft::rpc_sync<add>("callee", x, x), at::add(x, x)), "callee cannot add");
  answer_commands(commands);
  weft::shutdown();
}

/// main() of a benchmark that has no other roles.
inline int run_weft_program(int argc, char** argv, const Role& caller,
                            const std::function<void(const Settings&)>& measure) {
  return run_program(argc, argv, {{"weft_callee", run_weft_callee}, {"weft_caller", caller}},
                     measure);
}

}  // namespace bench
