// Codecs of the options of libtorch's modules, so that a module can be made on another worker from
// torch::nn::LinearOptions(4, 2) as it is made here.
//
// Every options struct of torch/nn/options is covered, except those that hold functions or modules
// (the transformers', TripletMarginWithDistanceLossOptions) and those of torch::nn::functional
// that are types of their own.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>  // first: clang in C++20 refuses libtorch 1.13's headers otherwise
#include <torch/nn/options/activation.h>
#include <torch/nn/options/adaptive.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/options/conv.h>
#include <torch/nn/options/distance.h>
#include <torch/nn/options/dropout.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/fold.h>
#include <torch/nn/options/instancenorm.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/options/padding.h>
#include <torch/nn/options/pixelshuffle.h>
#include <torch/nn/options/pooling.h>
#include <torch/nn/options/rnn.h>
#include <torch/nn/options/upsampling.h>
#include <torch/version.h>

#include "weft/codec.h"
#include "weft/nn/torch_values.h"

namespace weft {

namespace detail {

// Describes one options struct: kName, blank() to decode into, and fields(), which has all fields
// in the order of their declaration.
template <typename T>
struct TorchOptions;

template <typename T>
concept HasTorchOptions = requires {
  TorchOptions<T>::kName;
};

// The size of a struct with these members.
template <typename... Fields>
consteval size_t size_of_struct(std::type_identity<std::tuple<Fields&...>>) {
  const auto align = [](size_t to, size_t by) { return (to + by - 1) / by * by; };
  size_t end = 0;
  ((end = align(end, alignof(Fields)) + sizeof(Fields)), ...);
  return align(end, std::max({alignof(Fields)...}));
}

template <typename... Fields>
void describe_fields(TypeDescription& out, std::type_identity<std::tuple<Fields&...>>) {
  describe_all<Fields...>(out, "{", "}");
}

}  // namespace detail

template <detail::HasTorchOptions T>
struct Codec<T> {
  static void encode(Encoder& out, const T& value) {
    std::apply(
        [&out](const auto&... field) {
          (Codec<std::decay_t<decltype(field)>>::encode(out, field), ...);
        },
        Options::fields(value));
  }
  static T decode(Decoder& in) {
    Decoder::Nesting nesting(in);
    T value = Options::blank();
    std::apply(
        [&in](auto&... field) {
          ((field = Codec<std::decay_t<decltype(field)>>::decode(in)), ...);
        },
        Options::fields(value));
    return value;
  }
  static void describe(TypeDescription& out) {
    out.add(Options::kName);
    detail::describe_fields(out, Fields());
  }

 private:
  using Options = detail::TorchOptions<T>;
  using Fields = std::type_identity<decltype(Options::fields(std::declval<T&>()))>;
  // A later libtorch may add a field: then this fails to compile, and the field is not lost.
  static_assert(sizeof(T) == detail::size_of_struct(Fields()), "has fields that are not listed");
};

namespace detail {

// Struct: the options struct. Arguments: any arguments that its constructor takes. Then the fields
// of `o`, which is the struct.
#define WEFT_TORCH_OPTIONS_TEMPLATE(Struct, Arguments, ...)       \
  struct TorchOptions<torch::nn::Struct> {                        \
    static constexpr const char* kName = #Struct;                 \
    static auto blank() { return torch::nn::Struct Arguments; }   \
    static auto fields(auto& o) { return std::tie(__VA_ARGS__); } \
  }
#define WEFT_TORCH_OPTIONS(...) \
  template <>                   \
  WEFT_TORCH_OPTIONS_TEMPLATE(__VA_ARGS__)

WEFT_TORCH_OPTIONS(ELUOptions, (), o.alpha(), o.inplace());
WEFT_TORCH_OPTIONS(SELUOptions, (), o.inplace());
WEFT_TORCH_OPTIONS(GLUOptions, (), o.dim());
WEFT_TORCH_OPTIONS(GELUOptions, (), o.approximate());
WEFT_TORCH_OPTIONS(HardshrinkOptions, (), o.lambda());
WEFT_TORCH_OPTIONS(HardtanhOptions, (), o.min_val(), o.max_val(), o.inplace());
WEFT_TORCH_OPTIONS(LeakyReLUOptions, (), o.negative_slope(), o.inplace());
WEFT_TORCH_OPTIONS(SoftmaxOptions, (0), o.dim());
WEFT_TORCH_OPTIONS(SoftminOptions, (0), o.dim());
WEFT_TORCH_OPTIONS(LogSoftmaxOptions, (0), o.dim());
WEFT_TORCH_OPTIONS(PReLUOptions, (), o.num_parameters(), o.init());
WEFT_TORCH_OPTIONS(ReLUOptions, (), o.inplace());
WEFT_TORCH_OPTIONS(ReLU6Options, (), o.inplace());
WEFT_TORCH_OPTIONS(RReLUOptions, (), o.lower(), o.upper(), o.inplace());
WEFT_TORCH_OPTIONS(CELUOptions, (), o.alpha(), o.inplace());
WEFT_TORCH_OPTIONS(SoftplusOptions, (), o.beta(), o.threshold());
WEFT_TORCH_OPTIONS(SoftshrinkOptions, (), o.lambda());
WEFT_TORCH_OPTIONS(ThresholdOptions, (0, 0), o.threshold(), o.value(), o.inplace());
WEFT_TORCH_OPTIONS(MultiheadAttentionOptions, (0, 0), o.embed_dim(), o.num_heads(), o.dropout(),
                   o.bias(), o.add_bias_kv(), o.add_zero_attn(), o.kdim(), o.vdim());

WEFT_TORCH_OPTIONS(AdaptiveLogSoftmaxWithLossOptions, (0, 0, std::vector<int64_t>()),
                   o.in_features(), o.n_classes(), o.cutoffs(), o.div_value(), o.head_bias());

WEFT_TORCH_OPTIONS(BatchNormOptions, (0), o.num_features(), o.eps(), o.momentum(), o.affine(),
                   o.track_running_stats());

template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(detail::ConvNdOptions<D>, (0, 0, 0), o.in_channels(), o.out_channels(),
                            o.kernel_size(), o.stride(), o.padding(), o.dilation(), o.transposed(),
                            o.output_padding(), o.groups(), o.bias(), o.padding_mode());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(ConvOptions<D>, (0, 0, 0), o.in_channels(), o.out_channels(),
                            o.kernel_size(), o.stride(), o.padding(), o.dilation(), o.groups(),
                            o.bias(), o.padding_mode());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(ConvTransposeOptions<D>, (0, 0, 0), o.in_channels(), o.out_channels(),
                            o.kernel_size(), o.stride(), o.padding(), o.output_padding(),
                            o.groups(), o.bias(), o.dilation(), o.padding_mode());

WEFT_TORCH_OPTIONS(CosineSimilarityOptions, (), o.dim(), o.eps());
WEFT_TORCH_OPTIONS(PairwiseDistanceOptions, (), o.p(), o.eps(), o.keepdim());

WEFT_TORCH_OPTIONS(DropoutOptions, (), o.p(), o.inplace());

WEFT_TORCH_OPTIONS(EmbeddingOptions, (0, 0), o.num_embeddings(), o.embedding_dim(), o.padding_idx(),
                   o.max_norm(), o.norm_type(), o.scale_grad_by_freq(), o.sparse(), o._weight());
WEFT_TORCH_OPTIONS(EmbeddingFromPretrainedOptions, (), o.freeze(), o.padding_idx(), o.max_norm(),
                   o.norm_type(), o.scale_grad_by_freq(), o.sparse());
WEFT_TORCH_OPTIONS(EmbeddingBagOptions, (0, 0), o.num_embeddings(), o.embedding_dim(), o.max_norm(),
                   o.norm_type(), o.scale_grad_by_freq(), o.mode(), o.sparse(), o._weight(),
                   o.include_last_offset(), o.padding_idx());
WEFT_TORCH_OPTIONS(EmbeddingBagFromPretrainedOptions, (), o.freeze(), o.max_norm(), o.norm_type(),
                   o.scale_grad_by_freq(), o.mode(), o.sparse(), o.include_last_offset(),
                   o.padding_idx());

WEFT_TORCH_OPTIONS(FoldOptions, (0, 0), o.output_size(), o.kernel_size(), o.dilation(), o.padding(),
                   o.stride());
WEFT_TORCH_OPTIONS(UnfoldOptions, (0), o.kernel_size(), o.dilation(), o.padding(), o.stride());

WEFT_TORCH_OPTIONS(InstanceNormOptions, (0), o.num_features(), o.eps(), o.momentum(), o.affine(),
                   o.track_running_stats());

WEFT_TORCH_OPTIONS(LinearOptions, (0, 0), o.in_features(), o.out_features(), o.bias());
WEFT_TORCH_OPTIONS(FlattenOptions, (), o.start_dim(), o.end_dim());
WEFT_TORCH_OPTIONS(UnflattenOptions, (0, std::vector<int64_t>()), o.dim(), o.dimname(), o.sizes(),
                   o.namedshape());
WEFT_TORCH_OPTIONS(BilinearOptions, (0, 0, 0), o.in1_features(), o.in2_features(), o.out_features(),
                   o.bias());

WEFT_TORCH_OPTIONS(L1LossOptions, (), o.reduction());
WEFT_TORCH_OPTIONS(KLDivLossOptions, (), o.reduction(), o.log_target());
WEFT_TORCH_OPTIONS(MSELossOptions, (), o.reduction());
WEFT_TORCH_OPTIONS(BCELossOptions, (), o.weight(), o.reduction());
WEFT_TORCH_OPTIONS(HingeEmbeddingLossOptions, (), o.margin(), o.reduction());
WEFT_TORCH_OPTIONS(MultiMarginLossOptions, (), o.p(), o.margin(), o.weight(), o.reduction());
WEFT_TORCH_OPTIONS(CosineEmbeddingLossOptions, (), o.margin(), o.reduction());
WEFT_TORCH_OPTIONS(MultiLabelMarginLossOptions, (), o.reduction());
WEFT_TORCH_OPTIONS(SoftMarginLossOptions, (), o.reduction());
WEFT_TORCH_OPTIONS(MultiLabelSoftMarginLossOptions, (), o.weight(), o.reduction());
WEFT_TORCH_OPTIONS(TripletMarginLossOptions, (), o.margin(), o.p(), o.eps(), o.swap(),
                   o.reduction());
WEFT_TORCH_OPTIONS(CTCLossOptions, (), o.blank(), o.reduction(), o.zero_infinity());
WEFT_TORCH_OPTIONS(SmoothL1LossOptions, (), o.reduction(), o.beta());
WEFT_TORCH_OPTIONS(HuberLossOptions, (), o.reduction(), o.delta());
WEFT_TORCH_OPTIONS(PoissonNLLLossOptions, (), o.log_input(), o.full(), o.eps(), o.reduction());
WEFT_TORCH_OPTIONS(MarginRankingLossOptions, (), o.margin(), o.reduction());
WEFT_TORCH_OPTIONS(NLLLossOptions, (), o.weight(), o.ignore_index(), o.reduction());
WEFT_TORCH_OPTIONS(CrossEntropyLossOptions, (), o.weight(), o.ignore_index(), o.reduction(),
                   o.label_smoothing());
WEFT_TORCH_OPTIONS(BCEWithLogitsLossOptions, (), o.weight(), o.reduction(), o.pos_weight());

WEFT_TORCH_OPTIONS(LayerNormOptions, (std::vector<int64_t>()), o.normalized_shape(), o.eps(),
                   o.elementwise_affine());
WEFT_TORCH_OPTIONS(LocalResponseNormOptions, (0), o.size(), o.alpha(), o.beta(), o.k());
WEFT_TORCH_OPTIONS(CrossMapLRN2dOptions, (0), o.size(), o.alpha(), o.beta(), o.k());
WEFT_TORCH_OPTIONS(GroupNormOptions, (0, 0), o.num_groups(), o.num_channels(), o.eps(), o.affine());

template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(ReflectionPadOptions<D>, (0), o.padding());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(ReplicationPadOptions<D>, (0), o.padding());
WEFT_TORCH_OPTIONS(ZeroPad2dOptions, (0), o.padding());
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
WEFT_TORCH_OPTIONS(ZeroPad1dOptions, (0), o.padding());
WEFT_TORCH_OPTIONS(ZeroPad3dOptions, (0), o.padding());
#endif
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(ConstantPadOptions<D>, (0, 0), o.padding(), o.value());

WEFT_TORCH_OPTIONS(PixelShuffleOptions, (0), o.upscale_factor());
WEFT_TORCH_OPTIONS(PixelUnshuffleOptions, (0), o.downscale_factor());

template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(AvgPoolOptions<D>, (0), o.kernel_size(), o.stride(), o.padding(),
                            o.ceil_mode(), o.count_include_pad(), o.divisor_override());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(MaxPoolOptions<D>, (0), o.kernel_size(), o.stride(), o.padding(),
                            o.dilation(), o.ceil_mode());
template <typename Size>
WEFT_TORCH_OPTIONS_TEMPLATE(AdaptiveMaxPoolOptions<Size>, (0), o.output_size());
template <typename Size>
WEFT_TORCH_OPTIONS_TEMPLATE(AdaptiveAvgPoolOptions<Size>, (0), o.output_size());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(MaxUnpoolOptions<D>, (0), o.kernel_size(), o.stride(), o.padding());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(FractionalMaxPoolOptions<D>, (0), o.kernel_size(), o.output_size(),
                            o.output_ratio(), o._random_samples());
template <size_t D>
WEFT_TORCH_OPTIONS_TEMPLATE(LPPoolOptions<D>, (0, 0), o.norm_type(), o.kernel_size(), o.stride(),
                            o.ceil_mode());

WEFT_TORCH_OPTIONS(detail::RNNOptionsBase, (torch::kLSTM, 0, 0), o.mode(), o.input_size(),
                   o.hidden_size(), o.num_layers(), o.bias(), o.batch_first(), o.dropout(),
                   o.bidirectional(), o.proj_size());
WEFT_TORCH_OPTIONS(RNNOptions, (0, 0), o.input_size(), o.hidden_size(), o.num_layers(),
                   o.nonlinearity(), o.bias(), o.batch_first(), o.dropout(), o.bidirectional());
WEFT_TORCH_OPTIONS(LSTMOptions, (0, 0), o.input_size(), o.hidden_size(), o.num_layers(), o.bias(),
                   o.batch_first(), o.dropout(), o.bidirectional(), o.proj_size());
WEFT_TORCH_OPTIONS(GRUOptions, (0, 0), o.input_size(), o.hidden_size(), o.num_layers(), o.bias(),
                   o.batch_first(), o.dropout(), o.bidirectional());
WEFT_TORCH_OPTIONS(RNNCellOptions, (0, 0), o.input_size(), o.hidden_size(), o.bias(),
                   o.nonlinearity());
WEFT_TORCH_OPTIONS(LSTMCellOptions, (0, 0), o.input_size(), o.hidden_size(), o.bias());
WEFT_TORCH_OPTIONS(GRUCellOptions, (0, 0), o.input_size(), o.hidden_size(), o.bias());

WEFT_TORCH_OPTIONS(UpsampleOptions, (), o.size(), o.scale_factor(), o.mode(), o.align_corners());

#undef WEFT_TORCH_OPTIONS
#undef WEFT_TORCH_OPTIONS_TEMPLATE

}  // namespace detail

}  // namespace weft
