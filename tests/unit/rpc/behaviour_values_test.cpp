// Values other than tensors: what is sent is what arrives.
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/codec.h"

namespace weft::behaviour_values {

using namespace std::chrono_literals;
using testing::HasSubstr;

template <typename T>
T round_trip(const T& value) {
  Encoder out;
  Codec<T>::encode(out, value);
  Decoder in(out.payload(), {});
  T back = Codec<T>::decode(in);
  in.finish();
  return back;
}
template <typename T>
void travels(const T& value) {
  EXPECT_EQ(round_trip(value), value);
}

enum class Colour : uint8_t { kRed = 1, kBlue = 200 };
enum Plain { kZero, kMany = 1'000'000 };
struct Empty {
  bool operator==(const Empty&) const = default;
};
struct One {
  std::vector<std::string> words;
  bool operator==(const One&) const = default;
};
struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};
struct Line {
  Point from, to;
  std::optional<Colour> colour;
  std::array<Empty, 2> nothing;
  One one;
  bool operator==(const Line&) const = default;
};
struct Wide {
  bool a = false;
  int8_t b = 0;
  uint16_t c = 0;
  int32_t d = 0;
  uint64_t e = 0;
  float f = 0;
  std::string g;
  std::vector<bool> h;
  std::map<std::string, std::vector<int>> i;
  std::variant<std::monostate, int, std::string> j;
  std::tuple<int, std::string> k;
  std::pair<char, double> l;
  Colour m = Colour::kRed;
  std::chrono::milliseconds n{0};
  bool operator==(const Wide&) const = default;
};
struct Tree {
  int value = 0;
  std::vector<Tree> children;
  bool operator==(const Tree&) const = default;
};
struct Batch {
  std::string name;
  std::map<std::string, at::Tensor> parts;
  std::optional<at::Tensor> mask;
  std::variant<at::Tensor, double> weight;
};

Line line() { return {{1, 2}, {3, 4}, Colour::kBlue, {}, {{"a", "", "b"}}}; }
Wide wide() {
  return {true,
          -1,
          65535,
          -2'000'000'000,
          UINT64_MAX,
          1.5f,
          std::string("nul\0in", 6),
          {true, false, true},
          {{"a", {1, 2}}, {"", {}}},
          std::string("held"),
          {1, "t"},
          {'c', 2.5},
          Colour::kBlue,
          250ms};
}

TEST(Behaviour30_Values, Numbers) {
  travels(std::numeric_limits<int64_t>::min());
  travels(std::numeric_limits<uint64_t>::max());
  travels(int8_t{-128});
  travels(uint16_t{65535});
  travels('x');
  travels(char16_t{0x1234});
  travels(true);
  travels(false);
  travels(0.1f);
  travels(std::numeric_limits<double>::denorm_min());
  travels(-std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(round_trip(std::nan(""))));
  EXPECT_TRUE(std::signbit(round_trip(-0.0)));
  travels(Colour::kBlue);
  travels(kMany);
}

TEST(Behaviour30_Values, StringsAndSequences) {
  travels(std::string());
  travels(std::string("nul\0in", 6));
  travels(std::string(1'000'000, 'x'));
  travels(std::vector<double>(100'000, 0.5));
  travels(std::vector<int>());
  travels(std::vector<bool>{true, false, false, true, true});
  travels(std::vector<std::byte>{std::byte{1}, std::byte{255}});
  travels(std::vector<std::string>{"", "a", "bb"});
  travels(std::vector<std::vector<std::vector<int>>>{{{1}, {}}, {}, {{2, 3}}});
  travels(std::vector<Empty>(3));
  travels(std::array<int, 3>{1, 2, 3});
  travels(std::array<std::string, 2>{"a", "b"});
}

TEST(Behaviour30_Values, MapsAndSets) {
  travels(std::map<std::string, int>{{"a", 1}, {"b", 2}});
  travels(std::map<int, std::map<int, std::string>>{{1, {{2, "x"}}}, {3, {}}});
  travels(std::unordered_map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  travels(std::set<std::string>{"c", "a", "b"});
  travels(std::unordered_set<int64_t>{5, -7, 0});
  travels(std::map<Colour, std::set<int>>{{Colour::kRed, {1}}});
}

TEST(Behaviour30_Values, SumsAndProducts) {
  travels(std::optional<int>());
  travels(std::optional<int>(0));
  travels(std::optional<std::optional<std::string>>(std::optional<std::string>()));
  travels(std::pair<std::string, int>("a", 1));
  travels(std::tuple<>());
  travels(std::tuple<int, std::string, std::vector<double>>(1, "b", {2.5}));
  using Either = std::variant<int, std::string, std::vector<int>, Point>;
  travels(Either(7));
  travels(Either("text"));
  travels(Either(std::vector<int>{1}));
  travels(Either(Point{1, 2}));
  travels(std::variant<std::monostate, int>());
  travels(std::variant<int, int>(std::in_place_index<1>, 3));
}

TEST(Behaviour30_Values, Times) {
  travels(5ns);
  travels(-3h);
  travels(std::chrono::duration<double>(0.25));
  travels(std::chrono::duration<int, std::ratio<1, 30>>(90));
  travels(std::chrono::system_clock::now());
  travels(std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now()));
}

TEST(Behaviour30_Values, Aggregates) {
  travels(Empty{});
  travels(One{{"x"}});
  travels(line());
  travels(wide());
  travels(std::vector<Line>{line(), {}, line()});
  travels(std::map<std::string, Wide>{{"w", wide()}});
}

Tree deep(int levels) {
  Tree tree{levels, {}};
  if (levels > 1) tree.children.push_back(deep(levels - 1));
  return tree;
}

TEST(Behaviour30_Values, RecursiveAggregates) {
  travels(Tree{1, {{2, {}}, {3, {{4, {}}, {5, {}}}}}});
  travels(deep(16));
  EXPECT_THAT([] { round_trip(deep(100)); },
              testing::ThrowsMessage<Error>(HasSubstr("nest deeper")));
}

Wide change(Wide value, Tree tree, const Line& with) {
  value.g = with.one.words.at(0) + std::to_string(tree.children.size());
  return value;
}
Batch doubled(Batch batch) {
  for (auto& [name, part] : batch.parts) part = part + part;
  if (batch.mask) batch.mask = *batch.mask + 1;
  return batch;
}
int64_t levels(Tree tree) { return tree.children.empty() ? 1 : 1 + levels(tree.children[0]); }

TEST(Behaviour30_Values, AsArgumentsAndResults) {
  test::LoopbackGroup group({"a", "b"});
  Wide expected = wide();
  expected.g = "a2";

  EXPECT_EQ(group[0].sync<change>("b", wide(), Tree{0, {{1, {}}, {2, {}}}}, line()), expected);
}

TEST(Behaviour30_Values, TensorsWithinThem) {
  test::LoopbackGroup group({"a", "b"});
  const at::Tensor x = at::ones({2, 2});

  const Batch back = group[0].sync<doubled>("b", Batch{"n", {{"p", x}, {"q", x + 1}}, x, x * 3});

  EXPECT_EQ(back.name, "n");
  EXPECT_TRUE(at::equal(back.parts.at("p"), x * 2));
  EXPECT_TRUE(at::equal(back.parts.at("q"), x * 4));
  EXPECT_TRUE(at::equal(back.mask.value(), x * 2));
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(back.weight), x * 3));
}

TEST(Behaviour30_Values, TooDeepArgumentFailsTheCallAlone) {
  test::LoopbackGroup group({"a", "b"});

  EXPECT_THAT([&] { group[0].sync<levels>("b", deep(100)); },
              testing::ThrowsMessage<Error>(testing::AllOf(
                  HasSubstr("kBadMessage"), HasSubstr("levels on b"), HasSubstr("nest deeper"))));
  EXPECT_EQ(group[0].sync<levels>("b", deep(16)), 16);
  EXPECT_EQ(group[0].debug_info().peers.at(0).connects, 1u);
}

}  // namespace weft::behaviour_values
