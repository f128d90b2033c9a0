// SPDX-License-Identifier: BSD-3-Clause
#include "weft/codec.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/limits.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

enum class Color : uint8_t { kRed = 1, kBlue = 7 };
struct Empty {
  friend bool operator==(const Empty&, const Empty&) = default;
};
struct Point {
  int32_t x = 0;
  double y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
struct Tree {
  std::string label;
  std::vector<Tree> children;
  friend bool operator==(const Tree&, const Tree&) = default;
};
struct Batch {
  at::Tensor input;
  std::vector<at::Tensor> parts;
};

std::vector<at::Tensor> tensors_of(const Encoder& out) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : out.tensors()) tensors.push_back(each.keep);
  return tensors;
}

template <typename T>
T decode(std::span<const std::byte> bytes, std::vector<at::Tensor> tensors = {}) {
  Decoder in(bytes, tensors);
  T value = Codec<T>::decode(in);
  in.finish();
  return value;
}

template <typename T>
T there_and_back(const T& value) {
  Encoder out;
  Codec<T>::encode(out, value);
  return decode<T>(out.payload(), tensors_of(out));
}

// The message of the error that decoding `bytes` as a T gives.
template <typename T>
std::string refusal(const std::vector<uint8_t>& bytes) {
  try {
    decode<T>(std::as_bytes(std::span(bytes)));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
    return error.message();
  }
}

template <typename T>
void expect_unchanged(const T& value) {
  EXPECT_EQ(there_and_back(value), value);
}

TEST(Codec, ValuesComeBackUnchanged) {
  expect_unchanged<int8_t>(-5);
  expect_unchanged<uint64_t>(UINT64_MAX);
  expect_unchanged(1.5f);
  expect_unchanged(-2.25);
  expect_unchanged(true);
  expect_unchanged(Color::kBlue);
  expect_unchanged(std::string("with \0 inside", 13));
  expect_unchanged(std::string());
  expect_unchanged(std::optional<int>());
  expect_unchanged(std::optional<std::string>("x"));
  expect_unchanged(std::variant<int, std::string, Point>(Point{1, 2}));
  expect_unchanged(std::variant<std::monostate, int>());
  expect_unchanged(std::pair<int, std::string>(1, "one"));
  expect_unchanged(std::tuple<bool, Color, Point>(false, Color::kRed, {3, 4}));
  expect_unchanged(std::array<std::string, 2>{"a", "b"});
  expect_unchanged(Empty{});
  expect_unchanged(std::chrono::nanoseconds(-7));
  expect_unchanged(std::chrono::system_clock::time_point(1234567890s));
}

TEST(Codec, ContainersComeBackUnchanged) {
  expect_unchanged(std::vector<int32_t>{});
  expect_unchanged(std::vector<double>{1, 2, 3});
  expect_unchanged(std::vector<std::string>{"", "b"});
  expect_unchanged(std::vector<bool>{true, false, true});
  expect_unchanged(std::vector<std::byte>{std::byte{1}, std::byte{255}});
  expect_unchanged(std::vector<Empty>(3));
  expect_unchanged(std::vector<Point>{{1, 2}, {3, 4}});
  expect_unchanged(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  expect_unchanged(std::unordered_map<int, Point>{{1, {1, 2}}, {2, {3, 4}}});
  expect_unchanged(std::set<int>{3, 1, 2});
  expect_unchanged(std::unordered_set<std::string>{"x", "y"});
}

TEST(Codec, AStructMayContainItself) {
  expect_unchanged(Tree{"root", {{"left", {}}, {"right", {{"leaf", {}}}}}});
}

TEST(Codec, TensorsTravelBesideTheBytes) {
  const at::Tensor tensor = at::arange(6).view({2, 3});

  const at::Tensor back = there_and_back(tensor);

  EXPECT_TRUE(at::equal(back, tensor));
  EXPECT_FALSE(there_and_back(at::Tensor()).defined());
}

TEST(Codec, ContainersOfTensorsComeBackUnchanged) {
  const std::vector<at::Tensor> tensors{at::ones({2}), at::Tensor(), at::zeros({3})};

  const auto back = there_and_back(tensors);

  ASSERT_EQ(back.size(), 3u);
  EXPECT_TRUE(at::equal(back[0], tensors[0]));
  EXPECT_FALSE(back[1].defined());
  EXPECT_TRUE(at::equal(back[2], tensors[2]));
}

TEST(Codec, StructsOfTensorsComeBackUnchanged) {
  const std::vector<Batch> batches{{at::ones({2}), {at::zeros({1}), at::ones({1})}},
                                   {at::ones({3}), {}}};

  const auto back = there_and_back(batches);

  ASSERT_EQ(back.size(), 2u);
  EXPECT_TRUE(at::equal(back[1].input, at::ones({3})));
  EXPECT_EQ(back[0].parts.size(), 2u);
}

TEST(Decoder, RefusesAValueThatEndsEarly) {
  EXPECT_THAT(refusal<int32_t>({1, 2, 3}), HasSubstr("4 bytes wanted, 3 left"));
  EXPECT_THAT(refusal<Point>({1, 0, 0, 0}), HasSubstr("8 bytes wanted, 0 left"));
  EXPECT_THAT(refusal<std::string>({1, 0, 0}), HasSubstr("wanted"));
}

TEST(Decoder, RefusesBytesTooMany) {
  EXPECT_THAT(refusal<int8_t>({1, 2}), HasSubstr("1 bytes too many"));
}

TEST(Decoder, RefusesValuesThatAreNone) {
  EXPECT_THAT(refusal<bool>({2}), HasSubstr("bool of value 2"));
  EXPECT_THAT(refusal<std::optional<int8_t>>({2, 0}), HasSubstr("bool of value 2"));
  EXPECT_THAT((refusal<std::variant<int8_t, bool>>({2, 0})), HasSubstr("variant index 2 of 2"));
}

TEST(Decoder, AClaimedLengthIsCheckedAgainstTheBytes) {
  const std::vector<uint8_t> four_billion{0xff, 0xff, 0xff, 0xff, 1, 2, 3};

  EXPECT_THAT(refusal<std::string>(four_billion), HasSubstr("claims 4294967295 elements"));
  EXPECT_THAT(refusal<std::vector<int64_t>>(four_billion), HasSubstr("3 bytes are left"));
  EXPECT_THAT(refusal<std::vector<std::string>>(four_billion), HasSubstr("claims"));
  EXPECT_THAT((refusal<std::map<int, int>>(four_billion)), HasSubstr("claims"));
  EXPECT_THAT(refusal<std::vector<at::Tensor>>(four_billion), HasSubstr("claims"));
}

TEST(Decoder, RefusesTensorsTooManyOrTooFew) {
  Encoder out;
  Codec<at::Tensor>::encode(out, at::ones({1}));

  EXPECT_THROW(decode<at::Tensor>(out.payload(), {}), Error);
  EXPECT_THROW(decode<at::Tensor>(out.payload(), {at::ones({1}), at::ones({1})}), Error);
}

Tree chain(int length) {
  Tree tree;
  for (int i = 1; i < length; ++i) tree = Tree{"", {tree}};
  return tree;
}

TEST(Decoder, RefusesValuesThatNestTooDeep) {
  // Each link of the chain is a struct and a vector.
  EXPECT_NO_THROW(there_and_back(chain(wire::kMaxNesting / 2)));
  EXPECT_THROW(there_and_back(chain(wire::kMaxNesting / 2 + 1)), Error);
}

TEST(Decoder, NestingIsDepthAndNotNumber) {
  const std::vector<Tree> many(1000, chain(10));

  EXPECT_NO_THROW(there_and_back(many));
}

template <typename T>
std::string description() {
  TypeDescription text;
  text.type<T>();
  return text.text();
}

TEST(TypeDescription, TellsEncodingsApart) {
  const std::set<std::string> all{
      description<int32_t>(),
      description<uint32_t>(),
      description<float>(),
      description<bool>(),
      description<std::string>(),
      description<at::Tensor>(),
      description<std::vector<int>>(),
      description<std::optional<int>>(),
      description<Point>(),
      description<Tree>(),
      description<Empty>(),
      description<std::array<int, 2>>(),
      description<std::array<int, 3>>(),
      description<std::chrono::seconds>(),
      description<std::chrono::milliseconds>(),
      description<std::variant<int, bool>>(),
      description<std::variant<bool, int>>(),
  };

  EXPECT_EQ(all.size(), 17u);
}

TEST(TypeDescription, IsTheSameForTypesOfOneEncoding) {
  EXPECT_EQ(description<std::unordered_set<int>>(), description<std::set<int>>());
  EXPECT_EQ(description<Color>(), description<uint8_t>());
}

}  // namespace
}  // namespace weft
