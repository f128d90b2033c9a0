// Reductions of what several members gave, and tensors as flat pieces.
// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/fold.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"
#include "wire/dtype.h"

namespace weft::collective {
namespace {

using testing::HasSubstr;
using testing::Property;
using testing::Throws;

auto is_bad_message() { return Throws<Error>(Property(&Error::code, ErrorCode::kBadMessage)); }

// What the member at `own` makes of these chunks, one tensor each.
at::Tensor folded(const Folding& folding, const std::vector<at::Tensor>& values, size_t own) {
  std::vector<Tensors> chunks;
  for (const at::Tensor& value : values) chunks.push_back({value.clone()});
  Tensors into = chunks[own];
  fold(folding, into, chunks, own);
  return into[0];
}

TEST(Fold, EveryOperation) {
  const std::vector<at::Tensor> values{at::tensor({1., 5., -2.}), at::tensor({4., 2., 8.}),
                                       at::tensor({-3., 2., 3.})};
  const std::pair<ReduceOp, at::Tensor> expected[] = {
      {ReduceOp::kSum, at::tensor({2., 9., 9.})},
      {ReduceOp::kProduct, at::tensor({-12., 20., -48.})},
      {ReduceOp::kMin, at::tensor({-3., 2., -2.})},
      {ReduceOp::kMax, at::tensor({4., 5., 8.})},
  };
  for (size_t own = 0; own < 3; ++own) {
    for (const auto& [op, value] : expected) {
      EXPECT_TRUE(at::equal(folded(folding_of(op, 3), values, own), value))
          << static_cast<int>(op) << " at " << own;
    }
    EXPECT_TRUE(folded(folding_of(ReduceOp::kAverage, 3), values, own)
                    .allclose(at::tensor({2., 9., 9.}) / 3));
  }
}

TEST(Fold, EverybodyGetsTheSameBitsInEveryType) {
  // More than one stretch, and not a whole number of them.
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> values;
    for (int i = 0; i < 5; ++i) values.push_back(at::randn({40'001}).to(type));
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      const at::Tensor first = folded(folding_of(op, 5), values, 0);
      for (size_t own = 1; own < 5; ++own) {
        EXPECT_TRUE(at::equal(folded(folding_of(op, 5), values, own), first)) << type;
      }
    }
  }
}

TEST(Fold, OfIntegersAndBooleans) {
  const at::Tensor large = at::full({3}, (int64_t{1} << 53) + 1, at::kLong);
  EXPECT_TRUE(at::equal(folded({}, {large, at::ones({3}, at::kLong)}, 1), large + 1));

  const at::Tensor a = at::tensor({1, 1, 0, 0}).to(at::kBool);
  const at::Tensor b = at::tensor({1, 0, 1, 0}).to(at::kBool);
  EXPECT_TRUE(at::equal(folded({ReduceOp::kSum}, {a, b}, 0), a.logical_or(b)));
  EXPECT_TRUE(at::equal(folded({ReduceOp::kMin}, {a, b}, 0), a.logical_and(b)));
  EXPECT_TRUE(at::equal(folded({ReduceOp::kProduct}, {a, b}, 1), a.logical_and(b)));
  EXPECT_TRUE(at::equal(folded({ReduceOp::kMax}, {a, b}, 1), a.logical_or(b)));
}

TEST(Fold, OfOneMemberIsWhatItHas) {
  const at::Tensor value = at::randn({7});

  EXPECT_TRUE(at::equal(folded(folding_of(ReduceOp::kAverage, 1), {value}, 0), value));
}

TEST(Fold, OfSeveralTensorsOneOfThemEmpty) {
  std::vector<Tensors> chunks{{at::ones({2}), at::empty({0}), at::ones({1})},
                              {at::ones({2}), at::empty({0}), at::ones({1})}};
  Tensors into = chunks[1];

  fold({ReduceOp::kSum, 0.25}, into, chunks, 1);

  EXPECT_TRUE(at::equal(into[0], at::full({2}, 0.5)));
  EXPECT_EQ(into[1].numel(), 0);
  EXPECT_TRUE(at::equal(into[2], at::full({1}, 0.5)));
}

TEST(Flat, SharesMemoryOfWhatIsContiguous) {
  for (const at::Tensor& tensor :
       {at::zeros({2, 3}), at::zeros({}), at::zeros({8}).narrow(0, 3, 4), at::empty({0, 4})}) {
    const at::Tensor all = flat(tensor);
    EXPECT_EQ(all.dim(), 1);
    EXPECT_EQ(all.numel(), tensor.numel());
    EXPECT_EQ(all.data_ptr(), tensor.data_ptr());
  }
}

// Another member may have laid out the same tensor differently: the order of the elements must not
// depend on it.
TEST(Flat, HasTheElementsInTheOrderOfTheirIndices) {
  const at::Tensor tensor = at::arange(6.).view({2, 3});
  const at::Tensor columns = tensor.t().contiguous().t();  // equal, stored by columns

  EXPECT_TRUE(at::equal(flat(columns), flat(tensor)));
  EXPECT_TRUE(at::equal(flat(at::arange(12.).view({2, 6}).slice(1, 0, 6, 2)),
                        at::tensor({0., 2., 4., 6., 8., 10.})));
  EXPECT_TRUE(at::equal(flat(at::ones({1}).expand({4})), at::ones({4})));
}

TEST(Flat, NeedsNoGradient) {
  const at::Tensor leaf = at::ones({2, 2}).requires_grad_();

  EXPECT_FALSE(flat(leaf).requires_grad());
}

TEST(Slice, CutsTensorsWhereverItFalls) {
  const Tensors tensors{at::arange(0., 3.), at::empty({0}, at::kDouble), at::arange(3., 4.),
                        at::arange(4., 9.)};
  for (int64_t begin = 0; begin <= 9; ++begin) {
    for (int64_t end = begin; end <= 9; ++end) {
      const Tensors slices = slice(tensors, begin, end);
      if (begin == end) {
        EXPECT_TRUE(slices.empty());
      } else {
        EXPECT_TRUE(at::equal(at::cat(slices), at::arange(double(begin), double(end))));
      }
    }
  }
}

TEST(Slice, IsAView) {
  const Tensors tensors{at::zeros({3}), at::zeros({3})};

  for (at::Tensor& each : slice(tensors, 2, 5)) each.fill_(1);

  EXPECT_TRUE(at::equal(tensors[0], at::tensor({0.f, 0.f, 1.f})));
  EXPECT_TRUE(at::equal(tensors[1], at::tensor({1.f, 1.f, 0.f})));
}

TEST(CheckLike, RefusesWhatDoesNotFit) {
  const Tensors wanted{at::zeros({3}), at::zeros({2})};
  EXPECT_NO_THROW(check_like(wanted, {at::ones({3}), at::ones({2})}));
  EXPECT_NO_THROW(check_like({}, {}));

  const Tensors wrong[] = {{},
                           {at::ones({3})},
                           {at::ones({3}), at::ones({2}), at::ones({1})},
                           {at::ones({2}), at::ones({3})},
                           {at::ones({3}), at::ones({2}, at::kDouble)},
                           {at::ones({3}), at::ones({2, 1})},
                           {at::ones({3}), at::Tensor()},
                           {at::ones({3}), at::ones({2}).to_sparse()}};
  for (const Tensors& got : wrong) {
    EXPECT_THAT([&] { check_like(wanted, got); }, is_bad_message());
  }
}

TEST(Signature, RefuseWhatCannotBeReduced) {
  const auto is_refused = [](const std::string& why) {
    return Throws<Error>(testing::AllOf(Property(&Error::code, ErrorCode::kInvalidArgument),
                                        Property(&Error::message, HasSubstr(why))));
  };
  const auto of = [](const Tensors& tensors, ReduceOp op) {
    return [=] { signature_of(Kind::kAllReduce, tensors, op); };
  };
  EXPECT_THAT(of({at::Tensor()}, ReduceOp::kSum), is_refused("undefined"));
  EXPECT_THAT(of({at::ones({2}).to_sparse()}, ReduceOp::kSum), is_refused("Sparse"));
  EXPECT_THAT(of({at::ones({2}, at::kLong)}, ReduceOp::kAverage), is_refused("average"));
  EXPECT_THAT(of({at::ones({2}, at::kBool)}, ReduceOp::kAverage), is_refused("average"));
  EXPECT_THAT(of({at::ones({2}, at::kComplexFloat)}, ReduceOp::kMax), is_refused("order"));
  EXPECT_THAT(of({at::ones({2}), at::ones({2}, at::kDouble)}, ReduceOp::kSum),
              is_refused("Double and of Float"));
  EXPECT_NO_THROW(signature_of(Kind::kAllGather, {at::ones({2}).to_sparse()}));
}

// Members may run different versions of libtorch, whose own numbers differ from these.
TEST(Signature, CarryTheTypesNumberOnTheWire) {
  for (const auto type : {at::kByte, at::kLong, at::kHalf, at::kFloat, at::kBool, at::kBFloat16}) {
    const Signature signature = signature_of(Kind::kAllReduce, {at::ones({2}).to(type)});

    EXPECT_EQ(signature.type, *wire::dtype_to_wire(type)) << type;
    EXPECT_NE(signature.type, static_cast<uint8_t>(type)) << type;
    EXPECT_THAT(describe(signature), testing::EndsWith(c10::toString(type)));
  }
  EXPECT_THAT([] { signature_of(Kind::kBroadcast, {at::empty({2}, at::kQInt8)}); },
              Throws<Error>(Property(&Error::message, HasSubstr("QInt8"))));
}

TEST(Signature, DescribeThemselves) {
  EXPECT_EQ(
      describe(signature_of(Kind::kAllReduce, {at::ones({2}), at::ones({3})}, ReduceOp::kMin)),
      "all_reduce (min) of 2 tensors with 5 elements of Float");
  EXPECT_EQ(describe(signature_of(Kind::kBroadcast, {at::ones({2})}, ReduceOp::kSum, 3)),
            "broadcast from rank 3 of 1 tensor with 2 elements of Float");
  EXPECT_EQ(describe(signature_of(Kind::kBarrier, {})), "barrier");
  // From another build, or from nobody we know.
  EXPECT_THAT(describe({.kind = 200}), HasSubstr("unknown operation"));
  EXPECT_THAT(describe({.kind = 0, .op = 77, .type = 250}),
              testing::AllOf(HasSubstr("unknown reduction"), HasSubstr("unknown type")));
}

}  // namespace
}  // namespace weft::collective
