// Test programs start themselves again to be other processes; an environment variable says as what.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>

namespace weft::test {

/// When `variable` is set, main() runs `part` in place of the tests.
struct RegisterProcessPart {
  RegisterProcessPart(const char* variable, std::function<int(int, char**)> part);
};

}  // namespace weft::test
