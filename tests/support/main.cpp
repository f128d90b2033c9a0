// The main of every test program.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/process_part.h"

namespace weft::test {

namespace {
auto& parts() {
  static std::vector<std::pair<const char*, std::function<int(int, char**)>>> all;
  return all;
}
}  // namespace

RegisterProcessPart::RegisterProcessPart(const char* variable,
                                         std::function<int(int, char**)> part) {
  parts().emplace_back(variable, std::move(part));
}

}  // namespace weft::test

int main(int argc, char** argv) {
  for (auto& [variable, part] : weft::test::parts()) {
    if (std::getenv(variable)) return part(argc, argv);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
