// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "checkpoint/manifest.h"
#include "unit/checkpoint/test_disk.h"

namespace weft::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;

auto is_damaged(const std::string& why) {
  return Throws<Error>(testing::AllOf(Property(&Error::code, ErrorCode::kStorageFailed),
                                      Property(&Error::message, HasSubstr(why))));
}

class PartFile : public testing::Test {
 protected:
  base::TemporaryDirectory directory{"weft-part"};
  const std::string path = directory.path() + "/a.part";

  PartSeal write(std::shared_ptr<Disk> disk = std::make_shared<Disk>()) {
    PartWriter writer(path, std::move(disk));
    writer.add({"", "generator", {{"value", at::arange(5)}}});
    writer.add({"module", "weight", {{"value", at::ones({300, 300}).t()}, {"none", at::Tensor()}}});
    writer.add(
        {"optimizer", "0.0", {{"step", int64_t{7}}, {"lr", 0.5}, {"name", "x"}, {"on", true}}});
    return writer.commit();
  }
  std::string bytes() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::vector<Entry> read(const PartSeal& seal) const { return read_entries(path, seal); }
};

TEST_F(PartFile, GivesBackWhatWasWritten) {
  const PartSeal seal = write();

  const std::vector<Entry> entries = read(seal);

  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[1].item, "module");
  EXPECT_EQ(entries[1].name, "weight");
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(entries[1].values.at("value")), at::ones({300, 300})));
  EXPECT_FALSE(std::get<at::Tensor>(entries[1].values.at("none")).defined());
  EXPECT_EQ(std::get<int64_t>(entries[2].values.at("step")), 7);
  EXPECT_EQ(std::get<std::string>(entries[2].values.at("name")), "x");
  EXPECT_FALSE(std::filesystem::exists(path + ".unfinished"));
}

TEST_F(PartFile, IsNotThereBeforeItIsCommitted) {
  {
    PartWriter writer(path);
    writer.add({"", "x", {}});
    EXPECT_TRUE(std::filesystem::exists(path + ".unfinished"));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST_F(PartFile, EveryFlippedBitAndEveryCutIsFound) {
  const PartSeal seal = write();
  const std::string whole = bytes();
  for (size_t i = 0; i < whole.size(); i += 1 + whole.size() / 257) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    replace(damaged);
    EXPECT_THAT([&] { read(seal); }, is_damaged("checksum")) << i;
    replace(whole.substr(0, i));
    EXPECT_THAT([&] { read(seal); }, is_damaged("bytes long")) << i;
  }
}

// Few enough for every bit: lengths, tables of tensors and names, all of them are decoded before
// the checksum is known.
TEST_F(PartFile, EveryFlippedBitOfASmallOneIsFound) {
  PartWriter writer(path);
  writer.add({"module", "weight", {{"value", at::eye(3).to_sparse()}, {"step", int64_t{7}}}});
  const PartSeal seal = writer.commit();
  const std::string whole = bytes();
  ASSERT_LT(whole.size(), 1000u);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    replace(damaged);
    EXPECT_THAT([&] { read(seal); }, is_damaged("a.part is damaged: its checksum is")) << bit;
  }
}

TEST_F(PartFile, BytesBehindItsEndAreFound) {
  const PartSeal seal = write();
  for (const size_t more : {size_t{1}, size_t{100}, size_t{1} << 20}) {
    replace(bytes().substr(0, seal.bytes) + std::string(more, 'x'));
    EXPECT_THAT([&] { read(seal); }, is_damaged("more than " + std::to_string(seal.bytes)));
  }
}

TEST_F(PartFile, IsReadOnce) {
  const PartSeal seal = write();
  const auto disk = std::make_shared<CountingDisk>();

  read_entries(path, seal, disk);

  EXPECT_EQ(disk->bytes_read, seal.bytes);
}

TEST_F(PartFile, ADiskThatDoesLittleAtATimeIsAskedAgain) {
  const auto disk = std::make_shared<ReluctantDisk>();
  PartWriter writer(path, disk);
  writer.add({"module", "weight", {{"value", at::arange(300)}}});
  const PartSeal seal = writer.commit();

  const auto entries = read_entries(path, seal, disk);

  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(entries[0].values.at("value")), at::arange(300)));
}

// Whatever bytes carry a right checksum: an error, never more.
TEST_F(PartFile, BytesThatAreNoEntriesAreRefused) {
  write();
  const std::string whole = bytes();
  for (size_t i = 0; i < 200; ++i) {
    std::string damaged = whole.substr(0, 1000 + i);
    damaged[16 + i % 900] = static_cast<char>(damaged[16 + i % 900] + 1 + static_cast<char>(i));
    replace(damaged);
    Checksum checksum;
    checksum.add(std::as_bytes(std::span(damaged)));
    EXPECT_THAT([&] { read({damaged.size(), checksum.value()}); }, is_damaged("a.part")) << i;
  }
}

TEST_F(PartFile, AMissingFileIsNamed) {
  EXPECT_THAT([&] { read({}); }, is_damaged("a.part: No such file"));
}

TEST_F(PartFile, ADirectoryThatCannotBeMadeIsNamed) {
  write();
  EXPECT_THAT([&] { make_directory(path + "/below"); }, is_damaged("a.part/below"));
}

TEST(Manifest, GivesBackWhatWasWritten) {
  const Manifest manifest{77, {{"ps", {123, 0xabcdef0123456789}}, {"trainer:0", {0, 1}}}};

  const Manifest read = Manifest::parse(manifest.text(), "path");

  EXPECT_EQ(read.save, 77u);
  ASSERT_EQ(read.parts.size(), 2u);
  EXPECT_EQ(read.parts.at("ps").bytes, 123u);
  EXPECT_EQ(read.parts.at("ps").checksum, 0xabcdef0123456789u);
}

TEST(Manifest, AnythingElseIsDamaged) {
  const std::string text = Manifest{77, {{"ps", {123, 456}}}}.text();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THAT([&] { Manifest::parse(damaged, "the path"); }, is_damaged("the path")) << i;
    EXPECT_THAT([&] { Manifest::parse(text.substr(0, i), "the path"); }, is_damaged("the path"));
  }
}

TEST(CheckpointFolder, CountsOnlyWithItsManifest) {
  const base::TemporaryDirectory directory("weft-folder");
  for (const uint64_t number : {3, 1, 12}) {
    make_directory(Folder(directory.path(), number).path());
    if (number != 12) Folder(directory.path(), number).write({});
  }
  for (const std::string other : {"notes", "7", "000000012", "18446744073709551615"}) {
    make_directory(directory.path() + "/" + other);
  }

  EXPECT_THAT(Folder::numbers(directory.path()), ElementsAre(1, 3, 12));
  EXPECT_THAT(Folder::complete_numbers(directory.path()), ElementsAre(1, 3));
  EXPECT_THAT(Folder::numbers(directory.path() + "/none"), ElementsAre());

  Folder(directory.path(), 3).remove();
  EXPECT_THAT(Folder::numbers(directory.path()), ElementsAre(1, 12));
}

// What is not Weft's stays, and with it the folder.
TEST(CheckpointFolder, OnlyItsOwnFilesAreRemoved) {
  const base::TemporaryDirectory directory("weft-folder");
  const Folder folder(directory.path(), 1);
  make_directory(folder.path());
  std::ofstream(folder.path() + "/mine.txt") << "mine";
  std::ofstream(folder.part("ps", 1)) << "a part";

  folder.remove();

  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/mine.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder.part("ps", 1)));
}

TEST(CheckpointFolder, ADiscardedAttemptLeavesOthers) {
  const base::TemporaryDirectory directory("weft-folder");
  const Folder folder(directory.path(), 1);
  make_directory(folder.path());
  std::ofstream(folder.part("ps", 1)) << "of an attempt";
  std::ofstream(folder.part("ps", 2) + ".unfinished") << "of another one";

  folder.discard(2);

  EXPECT_TRUE(std::filesystem::exists(folder.part("ps", 1)));
  EXPECT_FALSE(std::filesystem::exists(folder.part("ps", 2) + ".unfinished"));
  folder.discard(1);
  EXPECT_FALSE(std::filesystem::exists(folder.path()));
}

TEST(CheckpointFolder, ADirectoryThatCannotBeReadIsNoEmptyOne) {
  const base::TemporaryDirectory directory("weft-folder");
  std::ofstream(directory.path() + "/file") << "no directory";

  EXPECT_THAT([&] { Folder::numbers(directory.path() + "/file"); }, is_damaged("Not a directory"));
}

}  // namespace
}  // namespace weft::checkpoint
