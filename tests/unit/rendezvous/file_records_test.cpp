// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::rendezvous {
namespace {

using testing::HasSubstr;

Bytes header_bytes() { return {FileRecords::header().begin(), FileRecords::header().end()}; }

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::string refusal_of(const Bytes& bytes) {
  try {
    FileRecords().take(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

// docs/rendezvous.md shows the same bytes.
TEST(FileRecords, HaveTheBytesThatAreDocumented) {
  const Bytes header = {'W', 'E', 'F', 'T', 'M', 'E', 'E', 'T', 1, 0, 0, 0};
  const Bytes record = {8,   0,   0,   0,   2,   0,   0,   0,    'w',  'e',  'f',
                        't', '/', '0', '/', '1', 'h', 'i', 0x1b, 0xa5, 0x8f, 0x8e};

  EXPECT_EQ(header_bytes(), header);
  EXPECT_EQ(FileRecords::encode("weft/0/1", {'h', 'i'}), record);
}

TEST(FileRecords, TheLastValueOfAKeyCountsAndAnEmptyOneRemovesIt) {
  FileRecords records;

  records.take(joined({header_bytes(), FileRecords::encode("a", {1}), FileRecords::encode("b", {2}),
                       FileRecords::encode("a", {3, 4}), FileRecords::encode("b", {})}));

  EXPECT_EQ(records.find("a"), (Bytes{3, 4}));
  EXPECT_EQ(records.find("b"), std::nullopt);
  EXPECT_EQ(records.find("c"), std::nullopt);
  EXPECT_EQ(records.unfinished(), 0u);
}

TEST(FileRecords, MayComeInPiecesOfAnySize) {
  const Bytes all = joined({header_bytes(), FileRecords::encode("key", Bytes(300, 7))});
  FileRecords records;

  for (const uint8_t byte : all) {
    EXPECT_EQ(records.find("key"), std::nullopt);
    records.take({&byte, 1});
  }

  EXPECT_EQ(records.find("key"), Bytes(300, 7));
  EXPECT_EQ(records.unfinished(), 0u);
}

TEST(FileRecords, SayHowManyBytesBelongToNoWholeRecord) {
  const Bytes record = FileRecords::encode("key", {1, 2, 3});
  FileRecords records;

  records.take(header_bytes());
  records.take(std::span(record).first(record.size() - 1));

  EXPECT_EQ(records.unfinished(), record.size() - 1);
}

TEST(FileRecords, AFileOfAnotherKindIsRefusedAtItsFirstWrongByte) {
  EXPECT_THAT(refusal_of({'W', 'E', 'f'}), HasSubstr("no rendezvous file"));
  EXPECT_THAT(refusal_of({'W', 'E', 'F', 'T', 'M', 'E', 'E', 'T', 2, 0, 0, 0}),
              HasSubstr("version 2"));
  EXPECT_EQ(refusal_of({'W', 'E', 'F', 'T'}), "");
}

TEST(FileRecords, ADamagedRecordIsRefusedAndSaysWhere) {
  Bytes flipped = FileRecords::encode("key", {1, 2, 3});
  flipped[12] ^= 1;
  Bytes huge = FileRecords::encode("key", {1});
  huge[6] = 2;  // a value of 128 KiB
  const Bytes nameless(12, 0);

  EXPECT_THAT(refusal_of(joined({header_bytes(), flipped})), HasSubstr("record at byte 12"));
  EXPECT_THAT(refusal_of(joined({header_bytes(), huge})), HasSubstr("131073 bytes"));
  EXPECT_THAT(refusal_of(joined({header_bytes(), nameless})), HasSubstr("a key of 0"));
}

}  // namespace
}  // namespace weft::rendezvous
