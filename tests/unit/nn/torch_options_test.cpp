// SPDX-License-Identifier: BSD-3-Clause
#include "weft/nn/torch_options.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/version.h>

namespace weft {
namespace {

namespace nn = torch::nn;
using testing::Each;
using testing::HasSubstr;

template <typename T>
T decode(std::span<const std::byte> bytes, std::vector<at::Tensor> tensors = {}) {
  Decoder in(bytes, tensors);
  T value = Codec<T>::decode(in);
  in.finish();
  return value;
}

std::vector<at::Tensor> tensors_of(const Encoder& out) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : out.tensors()) tensors.push_back(each.keep);
  return tensors;
}

template <typename T>
T there_and_back(const T& value) {
  Encoder out;
  Codec<T>::encode(out, value);
  return decode<T>(out.payload(), tensors_of(out));
}

// The message of the error that decoding `bytes` as a T gives; empty if it gives none.
template <typename T>
std::string refusal(std::span<const std::byte> bytes, std::vector<at::Tensor> tensors = {}) {
  try {
    decode<T>(bytes, std::move(tensors));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
    return error.message();
  }
}

template <typename T>
std::string refusal(const std::vector<uint8_t>& bytes) {
  return refusal<T>(std::as_bytes(std::span(bytes)));
}

template <typename T>
std::string description() {
  TypeDescription out;
  out.type<T>();
  return out.text();
}

// Gives a field another value, and every number another one.

int next_number() {
  static int last = 10;
  return ++last;
}

template <template <typename...> class Variant, typename First, typename... Rest>
void change_alternative(Variant<First, Rest...>& field) {
  using Last = std::tuple_element_t<sizeof...(Rest) - 1, std::tuple<Rest...>>;
  if constexpr (std::is_default_constructible_v<First>) {
    if (field.index() == sizeof...(Rest)) {
      field = First();
      return;
    }
  }
  field = Last();
}

template <typename T>
void change(T& field);

template <typename T>
T changed() {
  if constexpr (std::is_default_constructible_v<T>) {
    T value{};
    change(value);
    return value;
  } else {
    T value(0);
    change(value);
    return value;
  }
}

template <typename T>
void change(T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    field = !field;
  } else if constexpr (std::is_arithmetic_v<T>) {
    field = static_cast<T>(next_number()) + static_cast<T>(0.25);
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = "text " + std::to_string(next_number());
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    field = at::full({2}, next_number());
  } else if constexpr (requires { field.has_value(); }) {
    field = field ? T() : T(changed<typename T::value_type>());
  } else if constexpr (requires { field.index(); }) {
    change_alternative(field);
  } else if constexpr (requires { field.first; }) {
    change(field.first);
    change(field.second);
  } else if constexpr (requires { field.push_back(field[0]); }) {
    field.push_back(changed<typename T::value_type>());
    field.push_back(changed<typename T::value_type>());
  } else {
    for (auto& each : *field) change(each);
  }
}

template <typename T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
  } else if constexpr (requires { a.has_value(); }) {
    return a.has_value() == b.has_value() && (!a || same(*a, *b));
  } else if constexpr (requires { a.index(); }) {
    return a.index() == b.index();
  } else if constexpr (requires { a == b; }) {
    return a == b;
  } else {
    return std::equal(a->begin(), a->end(), b->begin(),
                      [](const auto& one, const auto& other) { return same(one, other); });
  }
}

template <typename... Fields>
std::vector<bool> compare(const std::tuple<Fields&...>& a, const std::tuple<Fields&...>& b) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::vector<bool>{same(std::get<I>(a), std::get<I>(b))...};
  }
  (std::index_sequence_for<Fields...>());
}

// Every options struct with its fields: a second list, so that what the header forgets shows.

#define FIELDS(...) [](auto& o) { return std::tie(__VA_ARGS__); }

void visit_activations(auto visit) {
  visit(nn::ELUOptions(), FIELDS(o.alpha(), o.inplace()));
  visit(nn::SELUOptions(), FIELDS(o.inplace()));
  visit(nn::GLUOptions(), FIELDS(o.dim()));
  visit(nn::GELUOptions(), FIELDS(o.approximate()));
  visit(nn::HardshrinkOptions(), FIELDS(o.lambda()));
  visit(nn::HardtanhOptions(), FIELDS(o.min_val(), o.max_val(), o.inplace()));
  visit(nn::LeakyReLUOptions(), FIELDS(o.negative_slope(), o.inplace()));
  visit(nn::SoftmaxOptions(0), FIELDS(o.dim()));
  visit(nn::SoftminOptions(0), FIELDS(o.dim()));
  visit(nn::LogSoftmaxOptions(0), FIELDS(o.dim()));
  visit(nn::PReLUOptions(), FIELDS(o.num_parameters(), o.init()));
  visit(nn::ReLUOptions(), FIELDS(o.inplace()));
  visit(nn::ReLU6Options(), FIELDS(o.inplace()));
  visit(nn::RReLUOptions(), FIELDS(o.lower(), o.upper(), o.inplace()));
  visit(nn::CELUOptions(), FIELDS(o.alpha(), o.inplace()));
  visit(nn::SoftplusOptions(), FIELDS(o.beta(), o.threshold()));
  visit(nn::SoftshrinkOptions(), FIELDS(o.lambda()));
  visit(nn::ThresholdOptions(0, 0), FIELDS(o.threshold(), o.value(), o.inplace()));
  visit(nn::MultiheadAttentionOptions(0, 0),
        FIELDS(o.embed_dim(), o.num_heads(), o.dropout(), o.bias(), o.add_bias_kv(),
               o.add_zero_attn(), o.kdim(), o.vdim()));
}

void visit_layers(auto visit) {
  const std::vector<int64_t> shape;
  visit(nn::LinearOptions(0, 0), FIELDS(o.in_features(), o.out_features(), o.bias()));
  visit(nn::FlattenOptions(), FIELDS(o.start_dim(), o.end_dim()));
  visit(nn::UnflattenOptions(0, shape), FIELDS(o.dim(), o.dimname(), o.sizes(), o.namedshape()));
  visit(nn::BilinearOptions(0, 0, 0),
        FIELDS(o.in1_features(), o.in2_features(), o.out_features(), o.bias()));
  visit(nn::AdaptiveLogSoftmaxWithLossOptions(0, 0, shape),
        FIELDS(o.in_features(), o.n_classes(), o.cutoffs(), o.div_value(), o.head_bias()));
  visit(nn::EmbeddingOptions(0, 0),
        FIELDS(o.num_embeddings(), o.embedding_dim(), o.padding_idx(), o.max_norm(), o.norm_type(),
               o.scale_grad_by_freq(), o.sparse(), o._weight()));
  visit(nn::EmbeddingFromPretrainedOptions(),
        FIELDS(o.freeze(), o.padding_idx(), o.max_norm(), o.norm_type(), o.scale_grad_by_freq(),
               o.sparse()));
  visit(nn::EmbeddingBagOptions(0, 0),
        FIELDS(o.num_embeddings(), o.embedding_dim(), o.max_norm(), o.norm_type(),
               o.scale_grad_by_freq(), o.mode(), o.sparse(), o._weight(), o.include_last_offset(),
               o.padding_idx()));
  visit(nn::EmbeddingBagFromPretrainedOptions(),
        FIELDS(o.freeze(), o.max_norm(), o.norm_type(), o.scale_grad_by_freq(), o.mode(),
               o.sparse(), o.include_last_offset(), o.padding_idx()));
  visit(nn::DropoutOptions(), FIELDS(o.p(), o.inplace()));
  visit(nn::CosineSimilarityOptions(), FIELDS(o.dim(), o.eps()));
  visit(nn::PairwiseDistanceOptions(), FIELDS(o.p(), o.eps(), o.keepdim()));
  visit(nn::detail::RNNOptionsBase(torch::kLSTM, 0, 0),
        FIELDS(o.mode(), o.input_size(), o.hidden_size(), o.num_layers(), o.bias(), o.batch_first(),
               o.dropout(), o.bidirectional(), o.proj_size()));
  visit(nn::RNNOptions(0, 0),
        FIELDS(o.input_size(), o.hidden_size(), o.num_layers(), o.nonlinearity(), o.bias(),
               o.batch_first(), o.dropout(), o.bidirectional()));
  visit(nn::LSTMOptions(0, 0),
        FIELDS(o.input_size(), o.hidden_size(), o.num_layers(), o.bias(), o.batch_first(),
               o.dropout(), o.bidirectional(), o.proj_size()));
  visit(nn::GRUOptions(0, 0), FIELDS(o.input_size(), o.hidden_size(), o.num_layers(), o.bias(),
                                     o.batch_first(), o.dropout(), o.bidirectional()));
  visit(nn::RNNCellOptions(0, 0),
        FIELDS(o.input_size(), o.hidden_size(), o.bias(), o.nonlinearity()));
  visit(nn::LSTMCellOptions(0, 0), FIELDS(o.input_size(), o.hidden_size(), o.bias()));
  visit(nn::GRUCellOptions(0, 0), FIELDS(o.input_size(), o.hidden_size(), o.bias()));
}

void visit_norms(auto visit) {
  const std::vector<int64_t> shape;
  visit(nn::BatchNormOptions(0),
        FIELDS(o.num_features(), o.eps(), o.momentum(), o.affine(), o.track_running_stats()));
  visit(nn::InstanceNormOptions(0),
        FIELDS(o.num_features(), o.eps(), o.momentum(), o.affine(), o.track_running_stats()));
  visit(nn::LayerNormOptions(shape), FIELDS(o.normalized_shape(), o.eps(), o.elementwise_affine()));
  visit(nn::LocalResponseNormOptions(0), FIELDS(o.size(), o.alpha(), o.beta(), o.k()));
  visit(nn::CrossMapLRN2dOptions(0), FIELDS(o.size(), o.alpha(), o.beta(), o.k()));
  visit(nn::GroupNormOptions(0, 0), FIELDS(o.num_groups(), o.num_channels(), o.eps(), o.affine()));
}

void visit_convolutions(auto visit) {
  visit(nn::detail::ConvNdOptions<2>(0, 0, 0),
        FIELDS(o.in_channels(), o.out_channels(), o.kernel_size(), o.stride(), o.padding(),
               o.dilation(), o.transposed(), o.output_padding(), o.groups(), o.bias(),
               o.padding_mode()));
  const auto conv = FIELDS(o.in_channels(), o.out_channels(), o.kernel_size(), o.stride(),
                           o.padding(), o.dilation(), o.groups(), o.bias(), o.padding_mode());
  visit(nn::Conv1dOptions(0, 0, 0), conv);
  visit(nn::Conv2dOptions(0, 0, 0), conv);
  visit(nn::Conv3dOptions(0, 0, 0), conv);
  visit(nn::ConvTransposeOptions<2>(0, 0, 0),
        FIELDS(o.in_channels(), o.out_channels(), o.kernel_size(), o.stride(), o.padding(),
               o.output_padding(), o.groups(), o.bias(), o.dilation(), o.padding_mode()));
  visit(nn::FoldOptions(0, 0),
        FIELDS(o.output_size(), o.kernel_size(), o.dilation(), o.padding(), o.stride()));
  visit(nn::UnfoldOptions(0), FIELDS(o.kernel_size(), o.dilation(), o.padding(), o.stride()));
  visit(nn::ReflectionPadOptions<2>(0), FIELDS(o.padding()));
  visit(nn::ReplicationPadOptions<2>(0), FIELDS(o.padding()));
  visit(nn::ZeroPad2dOptions(0), FIELDS(o.padding()));
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  visit(nn::ZeroPad1dOptions(0), FIELDS(o.padding()));
  visit(nn::ZeroPad3dOptions(0), FIELDS(o.padding()));
#endif
  visit(nn::ConstantPadOptions<2>(0, 0), FIELDS(o.padding(), o.value()));
  visit(nn::PixelShuffleOptions(0), FIELDS(o.upscale_factor()));
  visit(nn::PixelUnshuffleOptions(0), FIELDS(o.downscale_factor()));
  visit(nn::UpsampleOptions(), FIELDS(o.size(), o.scale_factor(), o.mode(), o.align_corners()));
}

void visit_pools(auto visit) {
  visit(nn::AvgPoolOptions<2>(0), FIELDS(o.kernel_size(), o.stride(), o.padding(), o.ceil_mode(),
                                         o.count_include_pad(), o.divisor_override()));
  visit(nn::MaxPoolOptions<2>(0),
        FIELDS(o.kernel_size(), o.stride(), o.padding(), o.dilation(), o.ceil_mode()));
  visit(nn::AdaptiveMaxPool1dOptions(0), FIELDS(o.output_size()));
  visit(nn::AdaptiveMaxPool3dOptions(0), FIELDS(o.output_size()));
  visit(nn::AdaptiveAvgPool1dOptions(0), FIELDS(o.output_size()));
  visit(nn::AdaptiveAvgPool3dOptions(0), FIELDS(o.output_size()));
  visit(nn::MaxUnpoolOptions<2>(0), FIELDS(o.kernel_size(), o.stride(), o.padding()));
  visit(nn::FractionalMaxPoolOptions<3>(0),
        FIELDS(o.kernel_size(), o.output_size(), o.output_ratio(), o._random_samples()));
  visit(nn::LPPoolOptions<2>(0, 0),
        FIELDS(o.norm_type(), o.kernel_size(), o.stride(), o.ceil_mode()));
}

void visit_losses(auto visit) {
  visit(nn::L1LossOptions(), FIELDS(o.reduction()));
  visit(nn::KLDivLossOptions(), FIELDS(o.reduction(), o.log_target()));
  visit(nn::MSELossOptions(), FIELDS(o.reduction()));
  visit(nn::BCELossOptions(), FIELDS(o.weight(), o.reduction()));
  visit(nn::HingeEmbeddingLossOptions(), FIELDS(o.margin(), o.reduction()));
  visit(nn::MultiMarginLossOptions(), FIELDS(o.p(), o.margin(), o.weight(), o.reduction()));
  visit(nn::CosineEmbeddingLossOptions(), FIELDS(o.margin(), o.reduction()));
  visit(nn::MultiLabelMarginLossOptions(), FIELDS(o.reduction()));
  visit(nn::SoftMarginLossOptions(), FIELDS(o.reduction()));
  visit(nn::MultiLabelSoftMarginLossOptions(), FIELDS(o.weight(), o.reduction()));
  visit(nn::TripletMarginLossOptions(),
        FIELDS(o.margin(), o.p(), o.eps(), o.swap(), o.reduction()));
  visit(nn::CTCLossOptions(), FIELDS(o.blank(), o.reduction(), o.zero_infinity()));
  visit(nn::SmoothL1LossOptions(), FIELDS(o.reduction(), o.beta()));
  visit(nn::HuberLossOptions(), FIELDS(o.reduction(), o.delta()));
  visit(nn::PoissonNLLLossOptions(), FIELDS(o.log_input(), o.full(), o.eps(), o.reduction()));
  visit(nn::MarginRankingLossOptions(), FIELDS(o.margin(), o.reduction()));
  visit(nn::NLLLossOptions(), FIELDS(o.weight(), o.ignore_index(), o.reduction()));
  visit(nn::CrossEntropyLossOptions(),
        FIELDS(o.weight(), o.ignore_index(), o.reduction(), o.label_smoothing()));
  visit(nn::BCEWithLogitsLossOptions(), FIELDS(o.weight(), o.reduction(), o.pos_weight()));
}

void visit_all(auto visit) {
  visit_activations(visit);
  visit_layers(visit);
  visit_norms(visit);
  visit_convolutions(visit);
  visit_pools(visit);
  visit_losses(visit);
}

template <typename T, typename Fields>
T with_all_changed(T options, Fields fields) {
  std::apply([](auto&... each) { (change(each), ...); }, fields(options));
  return options;
}

TEST(TorchOptions, EveryFieldComesBackUnchanged) {
  visit_all([]<typename T>(T defaults, auto fields) {
    SCOPED_TRACE(description<T>());
    T others = with_all_changed(defaults, fields);

    T defaults_back = there_and_back(defaults);
    T others_back = there_and_back(others);

    EXPECT_THAT(compare(fields(others), fields(defaults)), Each(false));
    EXPECT_THAT(compare(fields(others_back), fields(others)), Each(true));
    EXPECT_THAT(compare(fields(defaults_back), fields(defaults)), Each(true));
  });
}

TEST(TorchOptions, AnExplicitPaddingComesBackUnchanged) {
  using Padding = torch::ExpandingArray<2>;
  const auto sent = nn::Conv2dOptions(1, 1, 3).padding({2, 5});

  const auto padding = there_and_back(sent).padding();

  ASSERT_EQ(padding.index(), 0u);
  EXPECT_EQ(*get<Padding>(padding), (std::array<int64_t, 2>{2, 5}));
}

TEST(TorchOptions, NoTwoStructsHaveTheSameDescription) {
  std::set<std::string> seen;

  visit_all([&seen]<typename T>(const T&, auto) {
    EXPECT_TRUE(seen.insert(description<T>()).second) << description<T>();
  });
}

// The same in all versions of libtorch.
TEST(TorchOptions, DescriptionsNameTheStructAndItsTags) {
  EXPECT_EQ(description<nn::BatchNormOptions>(), "BatchNormOptions{i8,f8,?f8,,b,b,}");
  EXPECT_EQ(description<nn::L1LossOptions>(), "L1LossOptions{<kNone,kMean,kSum,>,}");
  EXPECT_EQ(description<nn::AdaptiveAvgPool2dOptions>(), "AdaptiveAvgPoolOptions<Size>{a2?i8,,}");
}

TEST(TorchOptions, TruncatedBytesAreRefused) {
  visit_all([]<typename T>(T options, auto fields) {
    SCOPED_TRACE(description<T>());
    Encoder out;
    Codec<T>::encode(out, with_all_changed(options, fields));

    for (size_t size = 0; size < out.payload().size(); ++size) {
      EXPECT_NE(refusal<T>(out.payload().first(size), tensors_of(out)), "") << size;
    }
  });
}

TEST(TorchOptions, ImpossibleValuesAreRefused) {
  EXPECT_THAT(refusal<nn::L1LossOptions>({2, 0}), "");
  EXPECT_THAT(refusal<nn::L1LossOptions>({3, 0}), HasSubstr("variant index 3 of 3"));
  EXPECT_NE(refusal<nn::ReLUOptions>({2}), "");
  EXPECT_NE(refusal<nn::LayerNormOptions>({255, 255, 255, 255, 1}), "");
}

std::string text_of(const nn::Module& module) {
  std::ostringstream out;
  module.pretty_print(out);
  for (const auto& each : module.named_parameters()) {
    out << "\n" << each.key() << " " << each.value().sizes();
  }
  return out.str();
}

template <typename Module>
void expect_same_module(const auto& options) {
  EXPECT_EQ(text_of(Module(there_and_back(options))), text_of(Module(options)));
}

TEST(TorchOptions, AModuleOfDecodedOptionsIsTheSameModule) {
  nn::BatchNormOptions cumulative(6);
  cumulative.momentum().reset();

  expect_same_module<nn::LinearImpl>(nn::LinearOptions(4, 2).bias(false));
  expect_same_module<nn::EmbeddingBagImpl>(nn::EmbeddingBagOptions(10, 3).mode(torch::kSum));
  expect_same_module<nn::LSTMImpl>(
      nn::LSTMOptions(4, 8).num_layers(2).bidirectional(true).proj_size(3));
  expect_same_module<nn::Conv2dImpl>(
      nn::Conv2dOptions(4, 8, {3, 5}).padding(torch::kSame).padding_mode(torch::kReflect));
  expect_same_module<nn::BatchNorm2dImpl>(cumulative);
}

}  // namespace
}  // namespace weft
