// Tensors keep values, shape and strides; and whose memory they are.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstring>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"

namespace weft::behaviour_tensors {

using testing::Property;
using testing::Throws;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

at::Tensor echo(at::Tensor tensor) { return tensor; }
std::vector<at::Tensor> echo_all(std::vector<at::Tensor> tensors) { return tensors; }

struct Seen {
  std::vector<int64_t> sizes, strides;
  int8_t dtype = 0;
  bool contiguous = false, requires_grad = false, leaf = false;
  double sum = 0;
};
Seen look_at(at::Tensor t) {
  return {
      t.sizes().vec(),   t.strides().vec(), static_cast<int8_t>(t.scalar_type()), t.is_contiguous(),
      t.requires_grad(), t.is_leaf(),       t.detach().sum().item<double>()};
}

at::Tensor counted(at::IntArrayRef sizes) {
  return at::arange(at::empty(sizes).numel(), at::kFloat).reshape(sizes);
}

class Behaviour30_Tensors : public testing::Test {
 protected:
  // There and back: same values, shape and type.
  at::Tensor round_trip(const at::Tensor& tensor) {
    at::Tensor back = group[0].sync<echo>("b", tensor);
    EXPECT_EQ(back.sizes(), tensor.sizes());
    EXPECT_EQ(back.dtype(), tensor.dtype());
    EXPECT_TRUE(at::equal(back, tensor)) << back << tensor;
    return back;
  }
  void keeps_strides(const at::Tensor& tensor) {
    const Seen seen = group[0].sync<look_at>("b", tensor);
    EXPECT_EQ(seen.strides, tensor.strides().vec());
    EXPECT_EQ(seen.sizes, tensor.sizes().vec());
    EXPECT_EQ(seen.sum, tensor.sum().item<double>());
    EXPECT_EQ(round_trip(tensor).strides(), tensor.strides());
  }

  test::LoopbackGroup group{{"a", "b"}};
};

TEST_F(Behaviour30_Tensors, OfEveryDenseType) {
  for (const at::ScalarType type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kComplexHalf, at::kComplexFloat, at::kComplexDouble, at::kBool, at::kBFloat16}) {
    const at::Tensor sent = at::empty({2, 3}, type);
    auto* bytes = static_cast<uint8_t*>(sent.data_ptr());
    for (size_t i = 0; i < sent.nbytes(); ++i)
      bytes[i] = static_cast<uint8_t>(type == at::kBool ? i % 2 : 37 * i);

    const at::Tensor back = group[0].sync<echo>("b", sent);

    EXPECT_EQ(back.scalar_type(), type);
    EXPECT_EQ(back.sizes(), sent.sizes());
    ASSERT_EQ(back.nbytes(), sent.nbytes());
    EXPECT_EQ(std::memcmp(back.data_ptr(), sent.data_ptr(), sent.nbytes()), 0) << toString(type);
  }
}

TEST_F(Behaviour30_Tensors, ZeroDimensionalAndEmpty) {
  EXPECT_EQ(round_trip(at::scalar_tensor(2.5)).dim(), 0);
  round_trip(at::empty({0}));
  round_trip(at::empty({0, 4}, at::kLong));
  round_trip(at::empty({4, 0, 3}));
  round_trip(at::empty({0, 4}).t());
  round_trip(counted({3, 4}).narrow(0, 1, 0));
  round_trip(counted(std::vector<int64_t>(16, 1)));
  EXPECT_THAT([&] { group[0].sync<echo>("b", counted(std::vector<int64_t>(17, 1))); },
              fails_with(ErrorCode::kInvalidArgument));
}

TEST_F(Behaviour30_Tensors, NonContiguousWithTheirStrides) {
  const at::Tensor x = counted({6, 8});
  keeps_strides(x.t());
  keeps_strides(x.narrow(1, 2, 5));
  keeps_strides(x.narrow(0, 2, 3));
  keeps_strides(x.slice(0, 0, 6, 2));
  keeps_strides(x[2]);
  keeps_strides(counted({2, 3, 4}).permute({2, 0, 1}));
  keeps_strides(counted({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  keeps_strides(counted({3, 1}).expand({3, 50}));
  keeps_strides(at::ones({}).expand({10, 10}));
  keeps_strides(counted({10}).unfold(0, 4, 1));
}

TEST_F(Behaviour30_Tensors, SmallViewsKeepTheirStridesWhateverTheySpan) {
  keeps_strides(counted({5, 5}).narrow(1, 1, 2));
  keeps_strides(counted({100, 10}).select(1, 3));
}

TEST_F(Behaviour30_Tensors, ViewOfLittleOfMuchSendsLittle) {
  const at::Tensor x = counted({1000, 8});

  EXPECT_TRUE(round_trip(x.select(1, 3)).is_contiguous());
  EXPECT_TRUE(round_trip(x.slice(0, 0, 1000, 4)).is_contiguous());
  const uint64_t before = group[0].debug_info().peers.at(0).bytes_sent;
  round_trip(x.select(1, 5));
  EXPECT_LT(group[0].debug_info().peers.at(0).bytes_sent - before, 1000 * sizeof(float) + 512);
}

TEST_F(Behaviour30_Tensors, ViewsThatNegateOrConjugate) {
  const at::Tensor z = at::complex(counted({2, 3}), counted({2, 3}) + 1);
  const at::Tensor conjugate = group[0].sync<echo>("b", z.conj());
  EXPECT_TRUE(at::equal(at::real(conjugate), at::real(z)));
  EXPECT_TRUE(at::equal(at::imag(conjugate), -at::imag(z)));
  EXPECT_TRUE(at::equal(group[0].sync<echo>("b", at::imag(z.conj())), -at::imag(z)));
}

TEST_F(Behaviour30_Tensors, Large) {
  round_trip(counted({3, 1024, 1024}));
  round_trip(counted({1024, 1025}).t());
}

void expect_same_sparse(const at::Tensor& back, const at::Tensor& sent) {
  EXPECT_TRUE(back.is_sparse());
  EXPECT_EQ(back.sizes(), sent.sizes());
  EXPECT_EQ(back.is_coalesced(), sent.is_coalesced());
  EXPECT_EQ(back.sparse_dim(), sent.sparse_dim());
  EXPECT_TRUE(at::equal(back._indices(), sent._indices()));
  EXPECT_TRUE(at::equal(back._values(), sent._values()));
  EXPECT_TRUE(at::equal(back.to_dense(), sent.to_dense()));
}

TEST_F(Behaviour30_Tensors, SparseCoalescedAndNot) {
  const at::Tensor indices = at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).reshape({2, 3});
  const at::Tensor plain = at::sparse_coo_tensor(indices, at::tensor({1.f, 2.f, 3.f}), {3, 4});
  const at::Tensor twice =
      at::sparse_coo_tensor(at::zeros({2, 3}, at::kLong), at::ones({3}), {3, 4});
  const at::Tensor hybrid = at::sparse_coo_tensor(indices, counted({3, 5}), {3, 4, 5});
  const at::Tensor nothing = at::sparse_coo_tensor({3, 4}, at::TensorOptions().dtype(at::kDouble));

  for (const at::Tensor& sent :
       {plain, plain.coalesce(), twice, twice.coalesce(), hybrid, nothing}) {
    expect_same_sparse(group[0].sync<echo>("b", sent), sent);
  }
  const auto several =
      group[0].sync<echo_all>("b", std::vector<at::Tensor>{plain, counted({2}), twice});
  expect_same_sparse(several[0], plain);
  EXPECT_TRUE(at::equal(several[1], counted({2})));
  expect_same_sparse(several[2], twice);
}

TEST_F(Behaviour30_Tensors, Undefined) {
  EXPECT_FALSE(group[0].sync<echo>("b", at::Tensor()).defined());
  const auto back = group[0].sync<echo_all>("b", std::vector<at::Tensor>{{}, counted({3}), {}});
  ASSERT_EQ(back.size(), 3u);
  EXPECT_FALSE(back[0].defined());
  EXPECT_TRUE(at::equal(back[1], counted({3})));
  EXPECT_FALSE(back[2].defined());
}

TEST_F(Behaviour30_Tensors, CarryRequiresGrad) {
  const at::Tensor leaf = counted({2, 3}).set_requires_grad(true);
  const at::Tensor computed = at::mul(leaf, 2);
  const at::Tensor sparse = at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}), {3})
                                .set_requires_grad(true);

  for (const at::Tensor& sent : {leaf, computed, leaf.t(), at::select(leaf, 1, 0)}) {
    const Seen seen = group[0].sync<look_at>("b", sent);
    EXPECT_TRUE(seen.requires_grad);
    EXPECT_TRUE(seen.leaf);
    EXPECT_EQ(seen.sizes, sent.sizes().vec());
    EXPECT_TRUE(group[0].sync<echo>("b", sent).requires_grad());
  }
  EXPECT_TRUE(group[0].sync<echo>("b", sparse).requires_grad());
  EXPECT_FALSE(group[0].sync<look_at>("b", leaf.detach()).requires_grad);
}

TEST_F(Behaviour30_Tensors, WhatCannotTravelIsRefusedBeforeSending) {
  const at::Tensor csr = counted({3, 3}).to_sparse_csr();
  const at::Tensor quantized = at::quantize_per_tensor(counted({3}), 0.1, 0, at::kQInt8);
  const at::Tensor meta = at::empty({3}, at::TensorOptions().device(at::kMeta));
  for (const at::Tensor& tensor : {csr, quantized, meta}) {
    EXPECT_THAT([&] { group[0].async<echo>("b", tensor); },
                fails_with(ErrorCode::kInvalidArgument));
  }
  round_trip(counted({3}));
}

// --- whose memory --------------------------------------------------------------------------------

std::vector<at::Tensor> kept;
void keep(at::Tensor tensor) { kept.push_back(std::move(tensor)); }
at::Tensor first_kept() { return kept.at(0); }
double overwrite(at::Tensor tensor) { return tensor.fill_(-1).sum().item<double>(); }

class Behaviour30_WhoseMemory : public Behaviour30_Tensors {
 protected:
  ~Behaviour30_WhoseMemory() override { kept.clear(); }
  // Within a frame, in chunks, from the pool.
  const std::vector<int64_t> sizes_{1, 100, 5'000, 100'000, 1'000'000};
};

TEST_F(Behaviour30_WhoseMemory, IsSentFromWhereItLies) {
  const at::Tensor x = counted({100}), view = counted({6, 8}).t();
  Encoder out;
  out.tensor(x);
  out.tensor(view);

  EXPECT_EQ(out.tensors()[0].data, x.data_ptr());
  EXPECT_EQ(out.tensors()[1].data, view.data_ptr());
}

TEST_F(Behaviour30_WhoseMemory, CallerMayChangeItAfterCompletion) {
  for (const int64_t size : sizes_) {
    kept.clear();
    const at::Tensor x = counted({size});
    const Future<void> call = group[0].async<keep>("b", x);
    call.wait();

    x.fill_(7);

    EXPECT_TRUE(at::equal(kept.at(0), counted({size})));
  }
}

TEST_F(Behaviour30_WhoseMemory, FunctionMayChangeWhatItReceived) {
  for (const char* to : {"a", "b"}) {
    for (const int64_t size : sizes_) {
      const at::Tensor x = counted({size});
      EXPECT_EQ(group[0].sync<overwrite>(to, x), -static_cast<double>(size));
      EXPECT_TRUE(at::equal(x, counted({size})));
    }
  }
}

TEST_F(Behaviour30_WhoseMemory, ResultsAreNobodyElses) {
  for (const int64_t size : sizes_) {
    kept.assign(1, counted({size}));
    at::Tensor first = group[0].sync<first_kept>("b");
    const at::Tensor second = group[0].sync<first_kept>("b");

    first.fill_(-1);
    first.resize_({2 * size});

    EXPECT_TRUE(at::equal(second, counted({size})));
    EXPECT_TRUE(at::equal(kept[0], counted({size})));
  }
}

TEST_F(Behaviour30_WhoseMemory, SameTensorTwiceArrivesAsTwo) {
  const at::Tensor x = counted({50});
  auto back = group[0].sync<echo_all>("b", std::vector<at::Tensor>{x, x});

  back[0].fill_(-1);

  EXPECT_TRUE(at::equal(back[1], x));
}

TEST_F(Behaviour30_WhoseMemory, LaterCallsDoNotTouchWhatWasReceived) {
  for (const int64_t size : sizes_) {
    kept.clear();
    std::vector<at::Tensor> results;
    for (int i = 0; i < 8; ++i) {
      group[0].sync<keep>("b", at::full({size}, double(i)));
      results.push_back(group[0].sync<echo>("b", at::full({size}, double(-i))));
      if (i % 3 == 0) kept.back() = kept.back().clone();  // gives its memory back
    }
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(at::equal(kept[i], at::full({size}, double(i))));
      EXPECT_TRUE(at::equal(results[i], at::full({size}, -double(i))));
    }
  }
}

}  // namespace weft::behaviour_tensors
