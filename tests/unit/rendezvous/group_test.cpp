// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/group.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using testing::HasSubstr;

template <typename F>
std::string refusal(F body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

TEST(WorkerName, HasLettersDigitsAndFewSigns) {
  for (const char* name : {"a", "worker1", "ps:0", "A-b_c:9", "0"}) {
    EXPECT_EQ(refusal([name] { check_name(name); }), "") << name;
  }
  for (const char* name : {"with space", "dot.ted", "umläut", "a/b", "new\nline", "tab\t"}) {
    EXPECT_THAT(refusal([name] { check_name(name); }), HasSubstr(name));
  }
}

TEST(WorkerName, HasOneTo127Bytes) {
  EXPECT_THAT(refusal([] { check_name(""); }), HasSubstr("non-empty"));
  EXPECT_EQ(refusal([] { check_name(std::string(127, 'n')); }), "");
  EXPECT_THAT(refusal([] { check_name(std::string(128, 'n')); }), HasSubstr("128 bytes"));
}

TEST(WorkerName, IsUniqueInItsGroup) {
  Group group;
  group.members = {{{"a", 0}, "", 1}, {{"b", 1}, "", 2}, {{"c", 2}, "", 3}};
  EXPECT_EQ(refusal([&] { check_names_unique(group); }), "");

  group.members[2].info.name = "a";

  EXPECT_THAT(refusal([&] { check_names_unique(group); }), HasSubstr("ranks 0 and 2"));
}

TEST(RandomId, IsNotZeroAndNotTheSameTwice) {
  std::set<uint64_t> ids;

  for (int i = 0; i < 1000; ++i) ids.insert(random_id());

  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_FALSE(ids.contains(0));
}

}  // namespace
}  // namespace weft::rendezvous
