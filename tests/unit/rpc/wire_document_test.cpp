// docs/wire_protocol.md against the program: what clients in other languages are written from.
// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/functions/function_table.h"
#include "support/loopback_group.h"
#include "weft/error.h"
#include "wire/hello.h"

namespace weft::rpc {
namespace {

using testing::HasSubstr;

const std::string& document() {
  static const std::string text = [] {
    std::ifstream file(WEFT_TEST_DATA "/../../docs/wire_protocol.md");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return text;
}

TEST(WireDocument, IsOfThisVersion) {
  EXPECT_THAT(document(),
              HasSubstr(fmt::format("# The wire protocol, version {}\n", wire::kProtocolVersion)));
}

TEST(WireDocument, ListsEveryReservedFunctionWithItsSignature) {
  test::LoopbackGroup group({"worker"});  // an agent that starts registers them
  int reserved = 0;

  for (uint32_t i = 0; i < function_count(); ++i) {
    const detail::FunctionEntry& function = *function_at(i);
    if (!is_reserved(function)) continue;
    ++reserved;
    EXPECT_THAT(document(),
                HasSubstr(fmt::format("| `{}` | `{}` |", function.name, function.signature_text)));
  }

  EXPECT_GT(reserved, 10);
}

TEST(WireDocument, ListsEveryErrorCode) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kStorageFailed); ++code) {
    EXPECT_THAT(document(),
                HasSubstr(fmt::format("| {} | `{}` |", code, name(static_cast<ErrorCode>(code)))));
  }
}

TEST(WireDocument, HasTheHashOfItsExample) {
  const std::string example = "({s,[f8,],},f8,)->{s,[f8,],}";

  EXPECT_THAT(document(), HasSubstr("    " + example + "\n"));
  EXPECT_THAT(document(), HasSubstr(fmt::format("{:#018x}", hash_signature(example))));
}

}  // namespace
}  // namespace weft::rpc
