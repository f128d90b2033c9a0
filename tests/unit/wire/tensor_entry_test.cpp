// SPDX-License-Identifier: BSD-3-Clause
#include "wire/tensor_entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"
#include "wire/dtype.h"

namespace weft::wire {
namespace {

using testing::HasSubstr;

TensorEntry row(std::vector<int64_t> sizes, std::vector<int64_t> strides = {},
                c10::ScalarType dtype = c10::ScalarType::Float) {
  TensorEntry entry;
  entry.dtype = dtype;
  entry.dimensions = static_cast<uint8_t>(sizes.size());
  std::copy_n(sizes.begin(), std::min(sizes.size(), kMaxDimensions), entry.sizes.begin());
  if (!strides.empty()) {
    entry.flags = kStrided;
    std::copy(strides.begin(), strides.end(), entry.strides.begin());
  }
  return entry;
}

TensorEntry row_of_bytes(uint64_t bytes, std::vector<int64_t> sizes,
                         std::vector<int64_t> strides = {}) {
  TensorEntry entry = row(std::move(sizes), std::move(strides));
  entry.bytes = bytes;
  return entry;
}

TensorEntry read(const std::vector<char>& bytes) {
  auto in = std::as_bytes(std::span(bytes));
  const TensorEntry entry = read_entry(in);
  EXPECT_TRUE(in.empty());
  return entry;
}

std::string refusal(const std::vector<char>& bytes) {
  try {
    read(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
    return error.message();
  }
}

std::vector<char> encoded(const TensorEntry& entry) {
  std::vector<char> bytes;
  append_entry(bytes, entry);
  return bytes;
}

std::string refusal(const TensorEntry& entry) { return refusal(encoded(entry)); }

TEST(TensorEntry, ComesBackUnchanged) {
  TensorEntry entry = row_of_bytes(84, {2, 3}, {16, 2});
  entry.flags |= kRequiresGrad;

  const TensorEntry back = read(encoded(entry));

  EXPECT_EQ(back.dtype, entry.dtype);
  EXPECT_EQ(back.flags, kStrided | kRequiresGrad);
  EXPECT_EQ(back.size_list(), entry.size_list());
  EXPECT_EQ(back.stride_list(), entry.stride_list());
  EXPECT_EQ(back.bytes, 84u);
}

TEST(TensorEntry, SpansFromTheFirstToTheLastElement) {
  EXPECT_EQ(spanned_bytes(row({})), 4u);
  EXPECT_EQ(spanned_bytes(row({2, 3})), 24u);
  EXPECT_EQ(spanned_bytes(row({2, 3}, {3, 1})), 24u);
  EXPECT_EQ(spanned_bytes(row({2, 3}, {0, 0})), 4u);
  EXPECT_EQ(spanned_bytes(row({2, 3}, {10, 2})), 60u);
  EXPECT_EQ(spanned_bytes(row({1, 2}, {INT64_MAX, 1})), 8u);
  EXPECT_EQ(spanned_bytes(row({5, 0, 7})), 0u);
  EXPECT_EQ(spanned_bytes(row({5, 0}, {INT64_MAX, INT64_MAX})), 0u);
}

TEST(TensorEntry, DeclaredBytesMustBeExactlyThoseOfTheShape) {
  EXPECT_EQ(refusal(row_of_bytes(24, {2, 3})), "");
  EXPECT_THAT(refusal(row_of_bytes(23, {2, 3})), HasSubstr("24 bytes declares 23"));
  EXPECT_THAT(refusal(row_of_bytes(25, {2, 3})), HasSubstr("24 bytes declares 25"));
  EXPECT_THAT(refusal(row_of_bytes(24, {2, 3}, {4, 1})), HasSubstr("28 bytes declares 24"));
  EXPECT_THAT(refusal(row_of_bytes(0, {})), HasSubstr("4 bytes declares 0"));
}

TEST(TensorEntry, RefusesShapesThatOverflow) {
  const int64_t large = int64_t{1} << 33;

  EXPECT_THAT(refusal(row({large, large})), HasSubstr("too large"));
  EXPECT_THAT(refusal(row({INT64_MAX})), HasSubstr("too large"));
  EXPECT_THAT(refusal(row({0, large, large})), HasSubstr("too large"));
  EXPECT_THAT(refusal(row({3}, {INT64_MAX})), HasSubstr("too large"));
  EXPECT_THAT(refusal(row({large, 2, large}, {0, 1, 0})), HasSubstr("too large"));
  EXPECT_THAT(refusal(row({2, 2}, {int64_t{1} << 40, int64_t{1} << 40})), HasSubstr("overflow"));
}

TEST(TensorEntry, RefusesNegativeSizesAndStrides) {
  EXPECT_THAT(refusal(row({-1})), HasSubstr("negative"));
  EXPECT_THAT(refusal(row({2}, {-1})), HasSubstr("-1"));
}

TEST(TensorEntry, RefusesMoreThanSixteenDimensions) {
  std::vector<char> bytes = encoded(row(std::vector<int64_t>(16, 1)));
  EXPECT_THAT(refusal(bytes), HasSubstr("declares")) << "sixteen are fine, their bytes are not";

  bytes[2] = 17;

  EXPECT_THAT(refusal(bytes), HasSubstr("17 dimensions"));
}

TEST(TensorEntry, RefusesUnknownTypesAndFlags) {
  std::vector<char> bytes = encoded(row_of_bytes(4, {}));
  bytes[0] = 99;
  EXPECT_THAT(refusal(bytes), HasSubstr("unknown dtype 99"));

  bytes = encoded(row_of_bytes(4, {}));
  bytes[1] = 64;
  EXPECT_THAT(refusal(bytes), HasSubstr("flags 64"));
}

TEST(TensorEntry, RefusesARowThatIsCut) {
  const std::vector<char> bytes = encoded(row_of_bytes(24, {2, 3}, {3, 1}));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(refusal(std::vector<char>(bytes.begin(), bytes.begin() + static_cast<long>(size))),
                HasSubstr("ends within a row"));
  }
}

TEST(TensorEntry, AnUndefinedTensorHasNothingElse) {
  TensorEntry entry;
  entry.flags = kUndefined;
  EXPECT_EQ(refusal(entry), "");

  entry.bytes = 1;
  EXPECT_THAT(refusal(entry), HasSubstr("undefined"));
  entry.bytes = 0;
  entry.sparse_dimensions = 1;
  EXPECT_THAT(refusal(entry), HasSubstr("undefined"));
}

TEST(TensorEntry, ADenseRowHasNothingThatOnlySparseOnesHave) {
  TensorEntry entry = row_of_bytes(8, {2});
  EXPECT_EQ(refusal(entry), "");

  entry.sparse_dimensions = 1;
  EXPECT_THAT(refusal(entry), HasSubstr("dense"));
  entry.sparse_dimensions = 0;
  entry.flags = kCoalesced;
  EXPECT_THAT(refusal(entry), HasSubstr("dense"));
}

TEST(TensorEntry, ASparseRowHasSizesAndNoBytes) {
  TensorEntry entry = row({int64_t{1} << 40, 1 << 20});
  entry.flags = kSparse;
  EXPECT_EQ(refusal(entry), "");

  entry.bytes = 8;
  EXPECT_THAT(refusal(entry), HasSubstr("sparse"));

  entry = row({INT64_MAX, INT64_MAX});
  entry.flags = kSparse;
  EXPECT_THAT(refusal(entry), HasSubstr("overflow"));
}

TEST(Dtype, NumbersAndTypesCorrespond) {
  int known = 0;
  for (int number = 0; number < 256; ++number) {
    const auto type = dtype_from_wire(static_cast<uint8_t>(number));
    if (!type) continue;
    ++known;
    EXPECT_EQ(dtype_to_wire(*type), number);
  }

  EXPECT_GE(known, 13);
  EXPECT_EQ(dtype_to_wire(c10::ScalarType::QInt8), std::nullopt);
  EXPECT_EQ(dtype_to_wire(c10::ScalarType::Float), 7);
}

Place place_of(size_t bytes) {
  Place place{7, static_cast<uint8_t>(bytes)};
  for (size_t i = 0; i < bytes; ++i) place.bytes[i] = static_cast<std::byte>(i + 1);
  return place;
}

std::vector<char> carried_row(const TensorEntry& entry, const Place& place) {
  std::vector<char> row, carried;
  append_entry(row, entry);
  append_carried(carried, std::as_bytes(std::span(row)), place);
  return carried;
}

TEST(TensorEntry, OfACarriedTensorSaysWhereItsBytesAre) {
  for (const size_t bytes : {size_t{0}, size_t{12}, Place::kMaxBytes}) {
    const TensorEntry entry = read(carried_row(row_of_bytes(24, {2, 3}, {1, 2}), place_of(bytes)));
    EXPECT_EQ(entry.flags, kStrided | kCarried);
    EXPECT_EQ(entry.bytes, 24u);
    EXPECT_EQ(entry.bytes_in_frame(), 0u);
    EXPECT_EQ(entry.place.carrier, 7);
    EXPECT_EQ(entry.place.size, bytes);
    EXPECT_EQ(entry.place.bytes, place_of(bytes).bytes);
  }
}

TEST(TensorEntry, WhosePlaceIsTooLongOrCutOffIsRefused) {
  std::vector<char> row = carried_row(row_of_bytes(24, {6}), place_of(12));
  row.pop_back();
  EXPECT_THAT(refusal(row), HasSubstr("a place of 12 bytes"));
  row.resize(row.size() - 12);
  EXPECT_THAT(refusal(row), HasSubstr("ends within a row"));
  row = carried_row(row_of_bytes(24, {6}), place_of(Place::kMaxBytes));
  row[row.size() - Place::kMaxBytes - 1] = Place::kMaxBytes + 1;
  row.push_back(0);
  EXPECT_THAT(refusal(row), HasSubstr("a place of 33 bytes"));
}

TEST(TensorEntry, OfASparseTensorIsNotCarried) {
  TensorEntry entry = row_of_bytes(0, {5});
  entry.flags = kSparse;
  entry.sparse_dimensions = 1;
  EXPECT_THAT(refusal(carried_row(entry, place_of(0))), HasSubstr("sparse tensor row with bytes"));
}

}  // namespace
}  // namespace weft::wire
