// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/functions/describe_exception.h"

#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/demangle.h"
#include "weft/error.h"

namespace weft::rpc {

std::string describe_exception(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const Error& thrown) {
    return thrown.message();
  } catch (const c10::Error& thrown) {
    return fmt::format("{}: {}", base::demangle(typeid(thrown)), thrown.what_without_backtrace());
  } catch (const std::exception& thrown) {
    return fmt::format("{}: {}", base::demangle(typeid(thrown)), thrown.what());
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

}  // namespace weft::rpc
