// Describes an exception for a caller on another worker.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <exception>
#include <string>

namespace weft::rpc {

/// Its type and its text, without a stack trace.
std::string describe_exception(std::exception_ptr error);

}  // namespace weft::rpc
