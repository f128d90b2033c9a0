// SPDX-License-Identifier: BSD-3-Clause
#include "weft/version.h"

#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Version, OfLibraryHeadersAndPackageAgree) {
  EXPECT_EQ(version(), std::to_string(WEFT_VERSION_MAJOR) + "." +
                           std::to_string(WEFT_VERSION_MINOR) + "." +
                           std::to_string(WEFT_VERSION_PATCH));
  EXPECT_STREQ(version(), WEFT_PACKAGE_VERSION);
  EXPECT_EQ(WEFT_VERSION,
            10000 * WEFT_VERSION_MAJOR + 100 * WEFT_VERSION_MINOR + WEFT_VERSION_PATCH);
}

}  // namespace
}  // namespace weft
