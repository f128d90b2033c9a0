// The functions by which workers tell each other about contexts, under names that begin with
// "sys.". The connection tells who calls.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/pass_message.h"
#include "weft/future.h"
#include "weft/rref.h"

namespace weft::autograd {

void register_reserved_functions();

// Called by the creator of a context, which leads its passes.
Future<PassAnswer> sys_autograd_ask(PassId pass, std::vector<uint64_t> messages);
Future<PassAnswer> sys_autograd_ask_root(detail::RRefTarget<at::Tensor> root, PassId pass);
Future<RunReport> sys_autograd_run(RunOrder order);
void sys_autograd_abort(int64_t context, std::string cause);
void sys_autograd_release(std::vector<int64_t> contexts);

// Called by workers that take part, at each other and at the creator.
void sys_autograd_gradients(ReturnedGradients returned);
void sys_autograd_fail(int64_t context, std::string cause);
/// Contexts::Status of each of these contexts, which the callee created.
std::vector<uint8_t> sys_autograd_watch(std::vector<int64_t> contexts);

}  // namespace weft::autograd
