// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/codec.h"
#include "wire/frame_decoder.h"
#include "wire/limits.h"
#include "wire/outbox.h"

namespace weft {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// Through a frame, as on the wire.
at::Tensor there_and_back(const at::Tensor& tensor) {
  Encoder out;
  out.tensor(tensor);
  wire::Outbox outbox;
  outbox.add({wire::FrameKind::kReply}, {}, out);
  wire::FrameDecoder decoder(std::make_shared<wire::ReceivePool>(0));
  wire::Frame frame;
  iovec pieces[8];
  bool complete = false;
  while (!outbox.empty()) {
    outbox.gather(pieces, 8);
    const std::span<std::byte> into = decoder.prepare();
    const size_t n = std::min(into.size(), pieces[0].iov_len);
    std::memcpy(into.data(), pieces[0].iov_base, n);
    outbox.consume(n);
    decoder.commit(n);
    complete = decoder.next(frame);
  }
  EXPECT_TRUE(complete);
  return frame.tensors.at(0);
}

std::string refusal(const at::Tensor& tensor) {
  try {
    Encoder out;
    out.tensor(tensor);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

TEST(Encoder, EveryDenseTypeTravels) {
  for (const auto type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kComplexFloat, at::kComplexDouble, at::kBool, at::kBFloat16}) {
    const at::Tensor tensor = at::arange(6).to(type).view({2, 3});

    const at::Tensor back = there_and_back(tensor);

    EXPECT_EQ(back.scalar_type(), type);
    EXPECT_TRUE(at::equal(back, tensor)) << type;
  }
}

TEST(Encoder, EveryShapeTravels) {
  const at::Tensor grid = at::arange(10'000).view({100, 100});
  for (const at::Tensor& tensor :
       {at::tensor(5), at::empty({0}), at::empty({3, 0, 2}),
        at::ones(at::IntArrayRef(std::vector<int64_t>(16, 1))), grid, grid.t(),
        grid.narrow(1, 3, 50), grid.select(1, 7), at::ones({1}).expand({50, 60}),
        grid.slice(0, 0, 100, 2), at::arange(9).unfold(0, 3, 1)}) {
    const at::Tensor back = there_and_back(tensor);

    EXPECT_EQ(back.sizes(), tensor.sizes());
    EXPECT_TRUE(at::equal(back, tensor)) << tensor.sizes();
  }
}

TEST(Encoder, StridesAreKeptUnlessMostOfTheMemoryIsNotTheTensors) {
  const at::Tensor grid = at::arange(10'000).view({100, 100});

  EXPECT_EQ(there_and_back(grid.t()).strides(), grid.t().strides());
  EXPECT_TRUE(there_and_back(grid.select(1, 7)).is_contiguous());
}

TEST(Encoder, ViewsThatAreComputedTravelAsValues) {
  const at::Tensor complex = at::complex(at::ones({4}), at::arange(4).to(at::kFloat));

  EXPECT_TRUE(at::equal(there_and_back(complex.conj()), complex.conj().resolve_conj()));
  EXPECT_TRUE(
      at::equal(there_and_back(at::imag(complex.conj())), at::imag(complex.conj()).clone()));
  EXPECT_TRUE(at::equal(there_and_back(at::_efficientzerotensor({3})), at::zeros({3})));
}

TEST(Encoder, RequiresGradIsCarried) {
  const at::Tensor leaf = at::ones({2}).set_requires_grad(true);

  EXPECT_TRUE(there_and_back(leaf).requires_grad());
  EXPECT_FALSE(there_and_back(at::ones({2})).requires_grad());
}

TEST(Encoder, SparseTensorsTravel) {
  const at::Tensor indices = at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor mixed = at::sparse_coo_tensor(indices, at::arange(6).view({3, 2}), {4, 5, 2});

  const at::Tensor back = there_and_back(mixed);
  const at::Tensor coalesced = there_and_back(mixed.coalesce());

  EXPECT_EQ(back.sizes(), mixed.sizes());
  EXPECT_FALSE(back.is_coalesced());
  EXPECT_TRUE(coalesced.is_coalesced());
  EXPECT_TRUE(at::equal(back.to_dense(), mixed.to_dense()));
  EXPECT_TRUE(at::equal(coalesced.to_dense(), mixed.to_dense()));
}

TEST(Encoder, ATensorThatOnlyClaimsToBeCoalescedArrivesAsOneThatIsNot) {
  const at::Tensor sorted = at::tensor({0, 0, 2, 1, 3, 0}, at::kLong).view({2, 3});
  const at::Tensor doubled = at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor unsorted = at::tensor({0, 0, 2, 3, 1, 0}, at::kLong).view({2, 3});
  for (const at::Tensor& indices : {sorted, doubled, unsorted}) {
    const at::Tensor claims = at::sparse_coo_tensor(indices, at::arange(3), {4, 5});
    claims._coalesced_(true);

    const at::Tensor back = there_and_back(claims);

    EXPECT_EQ(back.is_coalesced(), indices.is_same(sorted)) << indices;
    EXPECT_TRUE(at::equal(back._indices(), indices));
    EXPECT_TRUE(at::equal(back._values(), at::arange(3)));
  }
}

TEST(Encoder, AnEmptySparseTensorTravels) {
  const at::Tensor none =
      at::sparse_coo_tensor(at::empty({2, 0}, at::kLong), at::empty({0}), {4, 5});

  const at::Tensor back = there_and_back(none);

  EXPECT_EQ(back._nnz(), 0);
  EXPECT_EQ(back.sizes(), none.sizes());
}

TEST(Encoder, ASparseTensorWhoseValuesHaveTooManyDimensionsIsRefused) {
  const std::vector<int64_t> ones(16, 1);
  std::vector<int64_t> values(17, 1);
  const at::Tensor tensor =
      at::sparse_coo_tensor(at::empty({0, 1}, at::kLong), at::ones(values), ones);
  ASSERT_EQ(tensor.sparse_dim(), 0);

  EXPECT_THAT(refusal(tensor), EndsWith("with 16 dimensions cannot be sent: "
                                        "its values have more than 16 dimensions"));
}

TEST(Encoder, RefusesWhatCannotTravel) {
  EXPECT_THAT(refusal(at::ones(at::IntArrayRef(std::vector<int64_t>(17, 1)))),
              HasSubstr("more than 16 dimensions"));
  EXPECT_THAT(refusal(at::ones({2, 2}).to_sparse_csr()), HasSubstr("layout"));
  EXPECT_THAT(refusal(at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8)),
              HasSubstr("element type"));
  EXPECT_THAT(refusal(at::empty({2}, at::TensorOptions().device(at::kMeta))), HasSubstr("meta"));
}

TEST(Encoder, RefusesATensorTooLargeToDescribe) {
  const at::Tensor huge = at::ones({1}, at::kByte).expand({int64_t{1} << 41});

  EXPECT_NE(refusal(huge), "");
}

TEST(Encoder, RefusesMoreTensorsThanAFrameMayHave) {
  const at::Tensor tensor = at::ones({1});
  Encoder out;
  for (size_t i = 0; i < wire::kMaxRows; ++i) out.tensor(tensor);

  EXPECT_THROW(out.tensor(tensor), Error);
}

TEST(Encoder, GrowsAsNeeded) {
  Encoder out;
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string part(static_cast<size_t>(i % 50), static_cast<char>('a' + i % 26));
    out.write(part.data(), part.size());
    expected += part;
  }

  const auto payload = out.payload();

  EXPECT_EQ(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), expected);
}

TEST(Encoder, RefusesMoreBytesThanAFrameMayHaveHoweverTheyAreWritten) {
  constexpr size_t kMost = 260'046'848;  // with the largest tensor table it is still a frame's body
  const std::string part(1 << 20, 'x');
  Encoder out;
  for (size_t written = 0; written < kMost; written += part.size()) {
    out.write(part.data(), part.size());
  }

  EXPECT_THROW(out.write("x", 1), Error);
  EXPECT_EQ(out.payload().size(), kMost);
}

TEST(Encoder, OneInsideAnotherDoesNotDisturbIt) {
  Encoder outer;
  outer.scalar<uint32_t>(1);
  {
    Encoder inner;
    inner.scalar<uint32_t>(2);
    inner.tensor(at::ones({1}));
  }
  outer.scalar<uint32_t>(3);

  Encoder after;

  EXPECT_EQ(outer.payload().size(), 8u);
  EXPECT_EQ(outer.tensors().size(), 0u);
  EXPECT_EQ(after.payload().size(), 0u);
  EXPECT_EQ(after.tensors().size(), 0u);
}

}  // namespace
}  // namespace weft
