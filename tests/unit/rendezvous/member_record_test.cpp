// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/member_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/host_identity.h"
#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using testing::AllOf;
using testing::HasSubstr;

MemberRecord member_at(const std::string& name, const std::string& address,
                       const std::string& host) {
  return {name, address, 7, 8, 2, host};
}

// Why a member at rank 3 does not form a group with one at rank 5; empty if it does.
std::string fault_of(const MemberRecord& mine, const MemberRecord& other) {
  try {
    check_compatible(mine, 3, other, 5);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

// docs/rendezvous.md lists the fields.
TEST(MemberRecord, HasTheBytesThatAreDocumented) {
  const MemberRecord record{"ab", "h:1", 0x0102, 0x0304, 5, "x/9"};

  const Bytes bytes = encode_record(record);

  EXPECT_EQ(bytes, (Bytes{2, 0, 0, 0, 'a', 'b',          //
                          3, 0, 0, 0, 'h', ':', '1',     //
                          2, 1, 0, 0, 0,   0,   0,   0,  //
                          4, 3, 0, 0, 0,   0,   0,   0,  //
                          5, 0, 0, 0,                    //
                          3, 0, 0, 0, 'x', '/', '9'}));
  EXPECT_EQ(decode_record(bytes, 0).host, "x/9");
  EXPECT_EQ(decode_record(bytes, 0).world_size, 5);
}

TEST(MemberRecord, MembersOfOneHostMayListenOnLoopback) {
  const auto a = member_at("a", "127.0.0.1:1", "host1");
  const auto b = member_at("b", "127.0.0.1:2", "host1");

  EXPECT_EQ(fault_of(a, b), "");
}

TEST(MemberRecord, MembersOfTwoHostsMayListenOnTheirInterfaces) {
  const auto a = member_at("a", "10.0.0.6:1", "host1");
  const auto b = member_at("b", "[fe80::7]:2", "host2");

  EXPECT_EQ(fault_of(a, b), "");
}

TEST(MemberRecord, ALoopbackAddressOnAnotherHostIsNamedWithWhatToSet) {
  const auto reachable = member_at("a", "10.0.0.6:1", "host1");
  for (const char* loopback : {"127.0.0.1:2", "127.1.2.3:2", "[::1]:2", "[::ffff:127.0.0.1]:2"}) {
    const auto unreachable = member_at("b", loopback, "host2");

    const auto names_it = [&](int rank) {
      return AllOf(HasSubstr("WEFT_ADDRESS"), HasSubstr(loopback),
                   HasSubstr("rank " + std::to_string(rank) + " (\"b\") listens"));
    };
    EXPECT_THAT(fault_of(reachable, unreachable), names_it(5));
    EXPECT_THAT(fault_of(unreachable, reachable), names_it(3));
  }
}

TEST(MemberRecord, ANameThatIsNoneIsRefused) {
  const auto mine = member_at("a", "10.0.0.6:1", "host1");
  for (const char* name : {"", "b\n", "../b"}) {
    EXPECT_THAT(fault_of(mine, member_at(name, "10.0.0.7:1", "host1")),
                HasSubstr("the record of rank 5 at the rendezvous: a worker's name must"));
  }
}

TEST(MemberRecord, HostsThatAreUnknownAreNotCompared) {
  const auto a = member_at("a", "127.0.0.1:1", "");
  const auto b = member_at("b", "127.0.0.1:2", "host2");

  EXPECT_EQ(fault_of(a, b), "");
  EXPECT_EQ(fault_of(b, a), "");
}

TEST(HostIdentity, IsKnownAndStaysTheSame) {
  EXPECT_THAT(host_identity(), HasSubstr("/"));
  EXPECT_EQ(host_identity(), host_identity());
}

}  // namespace
}  // namespace weft::rendezvous
