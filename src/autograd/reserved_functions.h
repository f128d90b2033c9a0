// What workers tell each other about contexts: ordinary functions under names that start with
// "sys.". Who calls is known from the connection.
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

// The creator of a context leads its passes.
Future<PassAnswer> sys_autograd_ask(PassId pass, std::vector<uint64_t> messages);
Future<PassAnswer> sys_autograd_ask_root(detail::RRefTarget<at::Tensor> root, PassId pass);
Future<RunReport> sys_autograd_run(RunOrder order);
void sys_autograd_abort(int64_t context, std::string cause);
void sys_autograd_release(std::vector<int64_t> contexts);

// Those who take part, to each other and to the creator.
void sys_autograd_gradients(ReturnedGradients returned);
void sys_autograd_fail(int64_t context, std::string cause);
/// What became of these contexts of this worker's: Contexts::Status of each.
std::vector<uint8_t> sys_autograd_watch(std::vector<int64_t> contexts);

}  // namespace weft::autograd
