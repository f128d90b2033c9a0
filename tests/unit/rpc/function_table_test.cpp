// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/functions/function_table.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc.h"
#include "weft/rref.h"

namespace weft_function_table_test {

int plain(int n) { return n; }
int plain(double) { return 0; }
int without_parameters() { return 1; }
void takes_callback_like(std::map<std::string, std::vector<int>>) {}
int quiet(int n) noexcept { return n; }

struct Space {
  static int member(int n) { return n; }
};

struct Counter {
  explicit Counter(int start) : sum(start) {}
  int add(int n) { return sum += n; }
  int sum;
};

template <typename T>
T generic(T value) {
  return value;
}

enum class Mode { kFast, kSafe };
template <Mode>
int by_mode(int n) {
  return n;
}
template <int N>
int by_number(int n) {
  return n + N;
}

template <typename A, typename B>
struct APairOfTypesWithAVeryLongNameIndeed {};
template <typename T>
int long_named(int n) {
  return n;
}

namespace {
int hidden(int n) { return n; }
int hidden_with_string(std::string) { return 0; }
struct Unseen {};
template <typename T>
int hidden_generic(int n) {
  return n;
}
}  // namespace

}  // namespace weft_function_table_test

namespace {
int at_top(int n) { return n; }
}  // namespace

namespace weft::rpc {
namespace {

using namespace weft_function_table_test;

template <auto F>
std::string name_of() {
  return detail::OwnName<F>::name();
}

TEST(FunctionName, IsTheQualifiedNameWithoutParameters) {
  EXPECT_EQ(name_of<without_parameters>(), "weft_function_table_test::without_parameters");
  EXPECT_EQ(name_of<takes_callback_like>(), "weft_function_table_test::takes_callback_like");
  EXPECT_EQ(name_of<Space::member>(), "weft_function_table_test::Space::member");
  EXPECT_EQ(name_of<quiet>(), "weft_function_table_test::quiet");
}

TEST(FunctionName, OfOverloadsIsTheSameTheSignatureTellsThemApart) {
  constexpr int (*of_int)(int) = plain;
  constexpr int (*of_double)(double) = plain;

  EXPECT_EQ(name_of<of_int>(), "weft_function_table_test::plain");
  EXPECT_EQ(name_of<of_double>(), name_of<of_int>());
  EXPECT_NE(detail::RemoteFunction<of_int>::entry().signature,
            detail::RemoteFunction<of_double>::entry().signature);
}

TEST(FunctionName, KeepsAnonymousNamespaces) {
  EXPECT_EQ(name_of<hidden>(), "weft_function_table_test::(anonymous namespace)::hidden");
  EXPECT_EQ(name_of<hidden_with_string>(),
            "weft_function_table_test::(anonymous namespace)::hidden_with_string");
  EXPECT_EQ(name_of<at_top>(), "(anonymous namespace)::at_top");
}

TEST(FunctionName, TellsInstancesOfATemplateApart) {
  EXPECT_NE(name_of<generic<int>>(), name_of<generic<double>>());
  EXPECT_NE(name_of<by_number<1>>(), name_of<by_number<2>>());
  EXPECT_NE(name_of<hidden_generic<Unseen>>(), name_of<hidden_generic<int>>());
}

// Their template arguments have parentheses: "by_mode<(weft_function_table_test::Mode)1>(int)".
TEST(FunctionName, TellsInstancesByEnumeratorApart) {
  EXPECT_NE(name_of<by_mode<Mode::kFast>>(), name_of<by_mode<Mode::kSafe>>());
}

TEST(FunctionName, TellsLambdasApart) {
  constexpr auto first = [](int n) { return n; };
  constexpr auto second = [](int n) { return n + 1; };

  EXPECT_NE(name_of<first>(), name_of<second>());
  EXPECT_FALSE(name_of<first>().empty());
}

TEST(FunctionName, OfAMethodIsTheMethods) {
  using Method = detail::RemoteMethod<Counter, &Counter::add>;

  EXPECT_EQ(Method::CallFunction::entry().name, "weft_function_table_test::Counter::add");
  EXPECT_EQ(Method::CreationFunction::entry().name,
            "remote<weft_function_table_test::Counter::add>");
}

TEST(FunctionName, OfWhatMakesAnObjectIsWhatTheUserWrote) {
  using Making = detail::RemoteMaking<without_parameters, std::tuple<>>;
  using Construction = detail::RemoteConstruction<Counter, int>;

  EXPECT_EQ(Making::CreationFunction::entry().name,
            "remote<weft_function_table_test::without_parameters>");
  EXPECT_EQ(Construction::CreationFunction::entry().name,
            "remote<weft_function_table_test::Counter>");
  EXPECT_EQ(detail::RemoteFetch<Counter>::name(),
            "RRef<weft_function_table_test::Counter>::to_here");
}

TEST(FunctionName, TellsHowToExposeTheFunction) {
  EXPECT_EQ(how_to_expose("a::f"),
            "weft::expose<a::f>(), or weft::expose<&a::f>() if it is a method");
  EXPECT_EQ(
      how_to_expose("remote<a::f>"),
      "weft::expose_remote<a::f>(), or weft::expose_remote<a::f, arguments...>() if a::f is a "
      "class");
  EXPECT_EQ(how_to_expose("RRef<a::T>::to_here"), "weft::expose_value<a::T>()");
}

// What the advice says compiles, and finds the same entries as the calls.
TEST(FunctionTable, HasWhatWasExposed) {
  expose<&Counter::add>();
  expose_remote<without_parameters>();
  expose_remote<Counter, int>();
  expose_value<int64_t>();

  for (const char* name :
       {"weft_function_table_test::Counter::add", "remote<weft_function_table_test::Counter::add>",
        "remote<weft_function_table_test::without_parameters>",
        "remote<weft_function_table_test::Counter>", "RRef<long>::to_here"}) {
    EXPECT_TRUE(find_function(name, 0).name_exists) << name;
  }
}

TEST(FunctionTable, KnowsWhichFunctionsMakeObjects) {
  using detail::Makes;
  using Method = detail::RemoteMethod<Counter, &Counter::add>;

  EXPECT_EQ(Method::CallFunction::entry().makes, Makes::kNothing);
  EXPECT_EQ(Method::CreationFunction::entry().makes, Makes::kObject);
  EXPECT_EQ((detail::RemoteConstruction<Counter, int>::CreationFunction::entry().makes),
            Makes::kObject);
  EXPECT_EQ(detail::RemoteFetch<int64_t>::CallFunction::entry().makes, Makes::kNothing);
}

TEST(FunctionName, IsCutAndHashedBeyondTheLimit) {
  using Long = APairOfTypesWithAVeryLongNameIndeed<std::map<std::string, int>, std::vector<double>>;
  using Other = APairOfTypesWithAVeryLongNameIndeed<std::map<std::string, int>, std::vector<float>>;

  const std::string name = detail::RemoteFunction<long_named<Long>>::entry().name;
  const std::string other = detail::RemoteFunction<long_named<Other>>::entry().name;

  EXPECT_EQ(name.size(), 128u);
  EXPECT_EQ(other.size(), 128u);
  EXPECT_EQ(name.substr(0, 100), other.substr(0, 100));
  EXPECT_NE(name, other);
}

TEST(FunctionName, OfATagThatIsNoMangledNameIsKept) {
  EXPECT_EQ(detail::function_name_from_tag("??"), "??");
}

TEST(FunctionTable, FindsAFunctionByNameAndSignature) {
  const auto& entry = detail::RemoteFunction<without_parameters>::entry();

  const FunctionLookup found = find_function(entry.name, entry.signature);
  const FunctionLookup other_types = find_function(entry.name, entry.signature + 1);
  const FunctionLookup unknown = find_function("weft_function_table_test::nobody", entry.signature);

  EXPECT_EQ(found.found, &entry);
  EXPECT_EQ(other_types.found, nullptr);
  EXPECT_TRUE(other_types.name_exists);
  EXPECT_EQ(unknown.found, nullptr);
  EXPECT_FALSE(unknown.name_exists);
  EXPECT_EQ(function_at(entry.index), &entry);
  EXPECT_EQ(function_at(function_count()), nullptr);
}

TEST(FunctionTable, ARenamedFunctionIsFoundByItsNewNameOnly) {
  const auto& entry = detail::RemoteFunction<Space::member>::entry();
  const std::string old_name = entry.name;

  detail::RemoteFunction<Space::member>::rename("service.member");

  EXPECT_EQ(find_function("service.member", entry.signature).found, &entry);
  EXPECT_EQ(find_function(old_name, entry.signature).found, nullptr);
}

TEST(FunctionTable, ANameHasOneTo128Bytes) {
  using Function = detail::RemoteFunction<quiet>;

  EXPECT_THROW(Function::rename(""), Error);
  EXPECT_THROW(Function::rename(std::string(129, 'n')), Error);
  EXPECT_NO_THROW(Function::rename(std::string(128, 'n')));
}

TEST(FunctionTable, TwoFunctionsOfOneNameAndSignatureAreBothAmbiguous) {
  using First = detail::RemoteFunction<by_number<10>>;
  using Second = detail::RemoteFunction<by_number<11>>;

  First::rename("the.same");
  Second::rename("the.same");

  EXPECT_TRUE(First::entry().ambiguous);
  EXPECT_TRUE(Second::entry().ambiguous);
}

TEST(FunctionTable, OfTwoAmbiguousFunctionsTheRenamedAndTheOtherAreFound) {
  using First = detail::RemoteFunction<by_number<12>>;
  using Second = detail::RemoteFunction<by_number<13>>;
  First::rename("both");
  Second::rename("both");

  Second::rename("second");

  EXPECT_FALSE(First::entry().ambiguous);
  EXPECT_FALSE(Second::entry().ambiguous);
  EXPECT_EQ(find_function("both", First::entry().signature).found, &First::entry());
  EXPECT_EQ(find_function("second", Second::entry().signature).found, &Second::entry());

  First::rename("first");

  EXPECT_EQ(find_function("first", First::entry().signature).found, &First::entry());
  EXPECT_FALSE(find_function("both", First::entry().signature).name_exists);
}

TEST(FunctionTable, AUsersFunctionCannotTakeAReservedName) {
  using Function = detail::RemoteFunction<by_number<14>>;

  EXPECT_THROW(Function::rename("sys.report"), Error);
  EXPECT_THROW(expose<by_number<14>>("sys.mine"), Error);

  EXPECT_FALSE(is_reserved(Function::entry()));
}

TEST(HashSignature, IsTheSameInEveryBuild) {
  EXPECT_EQ(hash_signature(""), 14695981039346656037ull);
  EXPECT_EQ(hash_signature("(i4,)->i4"), hash_signature("(i4,)->i4"));
  EXPECT_EQ(hash_signature("a"), 0xaf63dc4c8601ec8cull);
}

}  // namespace
}  // namespace weft::rpc
