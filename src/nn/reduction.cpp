// SPDX-License-Identifier: BSD-3-Clause
#include "nn/reduction.h"

#include <memory>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace weft::nn {

using collective::Channel;
using collective::Kind;
using collective::Outcome;
using collective::Tensors;

namespace {

// The gradient as a flat tensor, in the memory order of the parameter, whose strides are the same
// on all members. Not a copy if the gradient has those strides and is on `device`.
at::Tensor flat_of(const at::Tensor& gradient, const at::Tensor& parameter, at::Device device) {
  if (!parameter.is_non_overlapping_and_dense()) {
    return gradient.to(device).contiguous().view({-1});
  }
  at::Tensor fitting = gradient;
  if (gradient.device() != device || gradient.strides() != parameter.strides()) {
    fitting = at::empty_strided(parameter.sizes(), parameter.strides(),
                                gradient.options().device(device));
    fitting.copy_(gradient);
  }
  return at::as_strided(fitting, {fitting.numel()}, {1});
}

at::Tensor from_flat(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides())
             : flat.view(parameter.sizes());
}

// The gradients of a bucket. With `find_unused`, `flat` has one more tensor at its end, with an
// element for each parameter: after the reduction it is not zero if a member used the parameter.
struct Dense {
  std::vector<Reduced> gradients;
  Tensors flat;
  bool find_unused = false;

  std::vector<Reduced> finish(const Outcome& outcome) {
    const c10::AutoGradMode off(false);
    // A small reduction on the CPU has its result in the outcome, not in `flat`.
    const Tensors& result = outcome.chunks.empty() ? flat : outcome.chunks[0];
    const at::Tensor uses = find_unused ? result.back().cpu() : at::Tensor();
    for (size_t i = 0; i < gradients.size(); ++i) {
      Reduced& each = gradients[i];
      const at::Tensor reduced = from_flat(result[i], each.parameter);
      const bool is_there = reduced.data_ptr() == each.gradient.data_ptr();
      if (!is_there) each.gradient = reduced.to(each.parameter.device());
      if (find_unused) each.used = uses[static_cast<int64_t>(i)].item<double>() != 0;
    }
    return std::move(gradients);
  }
};

at::Tensor fitting(const Reduced& each) {
  if (!each.gradient.defined()) return at::zeros_like(each.parameter);
  return each.gradient.is_sparse() ? each.gradient.to_dense() : each.gradient.detach();
}

at::Tensor as_sparse(const Reduced& each) {
  const auto options = each.parameter.options().layout(at::kSparse).requires_grad(false);
  if (!each.gradient.defined()) return at::zeros(each.parameter.sizes(), options).cpu();
  const at::Tensor gradient = each.gradient.detach().cpu();
  return (gradient.is_sparse() ? gradient : gradient.to_sparse(1)).coalesce();
}

void check_sparse(const at::Tensor& parameter, const Tensors& part) {
  const bool fits = part.size() == 2 && part[0].defined() && part[0].is_sparse() &&
                    part[0].sizes() == parameter.sizes() &&
                    part[0].scalar_type() == parameter.scalar_type() && part[1].defined() &&
                    part[1].numel() == 1;
  if (!fits) throw Error(ErrorCode::kBadMessage, "a sparse gradient that does not fit");
}

}  // namespace

Reducing reduce_dense(const collective::DualChannel& dual, const ReductionOptions& options,
                      std::vector<Reduced> gradients) {
  const c10::AutoGradMode off(false);
  auto dense = std::make_shared<Dense>();
  dense->find_unused = options.find_unused;
  // All gradients have the type and the device of the first.
  const at::Tensor& first = gradients.front().parameter;
  const bool direct = dual.is_direct(Kind::kAllReduce, {first}, options.ranks);
  const at::Device device = direct ? first.device() : at::Device(at::kCPU);
  at::Tensor uses;
  if (options.find_unused) {
    uses = at::zeros({static_cast<int64_t>(gradients.size())},
                     at::TensorOptions().dtype(first.scalar_type()));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    Reduced& each = gradients[i];
    if (uses.defined() && each.used) uses[static_cast<int64_t>(i)] = 1;
    each.gradient = fitting(each);
    dense->flat.push_back(flat_of(each.gradient, each.parameter, device));
  }
  if (uses.defined()) dense->flat.push_back(uses.to(device));
  dense->gradients = std::move(gradients);
  const auto agreed = collective::signature_of(Kind::kAllReduce, dense->flat, ReduceOp::kSum);
  const collective::Folding folding{ReduceOp::kSum, 1 / options.divisor};
  return {dual.all_reduce(agreed, dense->flat, options.ranks, folding),
          [dense](const Outcome& outcome) { return dense->finish(outcome); }};
}

Reducing reduce_sparse(Channel& channel, const ReductionOptions& options, Reduced gradient) {
  const c10::AutoGradMode off(false);
  const Tensors sent{as_sparse(gradient), at::empty({1}, at::kDouble).fill_(gradient.used ? 1 : 0)};
  const auto agreed = collective::signature_of(Kind::kAllGather, sent);
  auto sum_up = [gradient, divisor = options.divisor](const Outcome& outcome) {
    const c10::AutoGradMode still_off(false);
    Reduced reduced = gradient;
    at::Tensor sum;
    double uses = 0;
    for (const Tensors& chunk : outcome.chunks) {
      check_sparse(reduced.parameter, chunk);
      sum = sum.defined() ? sum + chunk[0] : chunk[0];
      uses += chunk[1].to(at::kDouble).item<double>();
    }
    reduced.used = uses != 0;
    reduced.gradient = sum.coalesce().mul(1 / divisor).to(reduced.parameter.device());
    return std::vector<Reduced>{std::move(reduced)};
  };
  return {channel.start(agreed, options.ranks,
                        collective::all_gather_algorithm(channel.place_in(options.ranks), sent)),
          std::move(sum_up)};
}

}  // namespace weft::nn
