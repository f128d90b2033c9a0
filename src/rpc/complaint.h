// The refusal of a function of Weft's own, as a value: thrown, it would reach the caller as an
// error of the user's code.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "rpc/functions/describe_exception.h"
#include "weft/error.h"

namespace weft::rpc {

struct [[nodiscard]] Complaint {
  uint8_t code = 0;  // an ErrorCode; zero: none
  std::string text = {};

  explicit operator bool() const { return code != 0; }
  Error error(const std::string& worker) const {
    return Error(static_cast<ErrorCode>(code), worker + ": " + text);
  }
};

/// Runs `f` and returns its exception as a complaint. Anything but an Error counts as a mistake in
/// the arguments.
template <typename F>
Complaint complaint_of(const F& f) {
  try {
    f();
    return {};
  } catch (const Error& error) {
    return {static_cast<uint8_t>(error.code()), error.message()};
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return {static_cast<uint8_t>(ErrorCode::kLimitExceeded), "out of memory"};
  } catch (...) {
    return {static_cast<uint8_t>(ErrorCode::kInvalidArgument),
            describe_exception(std::current_exception())};
  }
}

}  // namespace weft::rpc
