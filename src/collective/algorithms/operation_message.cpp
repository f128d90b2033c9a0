// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/operation_message.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "weft/error.h"
#include "wire/dtype.h"

namespace weft::collective {

namespace {

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kMembership:
      return "membership round of join";
    case Kind::kDeparture:
      return "end of join";
    case Kind::kMeeting:
      return "the first operation on accelerators";
  }
  return "unknown operation";
}

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown reduction";
}

[[noreturn]] void refuse(Kind kind, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} of {}", name(kind), what));
}

bool reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

}  // namespace

Signature signature_of(Kind kind, const Tensors& tensors, ReduceOp op, int root) {
  Signature signature{.kind = static_cast<uint8_t>(kind),
                      .op = static_cast<uint8_t>(op),
                      .root = root,
                      .tensors = tensors.size()};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) refuse(kind, "an undefined tensor");
    if (kind == Kind::kAllGather) continue;
    if (tensor.layout() != c10::kStrided) {
      refuse(kind, fmt::format("a tensor of layout {}; gather it", c10::str(tensor.layout())));
    }
    if (tensor.scalar_type() != tensors.front().scalar_type()) {
      refuse(kind, fmt::format("tensors of {} and of {}", c10::toString(tensor.scalar_type()),
                               c10::toString(tensors.front().scalar_type())));
    }
    signature.elements += static_cast<uint64_t>(tensor.numel());
  }
  if (tensors.empty() || kind == Kind::kAllGather) return signature;
  const c10::ScalarType type = tensors.front().scalar_type();
  const auto number = wire::dtype_to_wire(type);
  if (!number) refuse(kind, fmt::format("{}, a type that does not travel", c10::toString(type)));
  signature.type = *number;
  if (reduces(kind) && op == ReduceOp::kAverage && c10::isIntegralType(type, true)) {
    refuse(kind, fmt::format("{}: integers have no average; take the sum", c10::toString(type)));
  }
  if (reduces(kind) && (op == ReduceOp::kMin || op == ReduceOp::kMax) && c10::isComplexType(type)) {
    refuse(kind, fmt::format("{}: complex numbers have no order", c10::toString(type)));
  }
  return signature;
}

std::string describe(const Signature& signature) {
  const auto kind = static_cast<Kind>(signature.kind);
  std::string text = name(kind);
  if (reduces(kind)) text += fmt::format(" ({})", name(static_cast<ReduceOp>(signature.op)));
  if (kind == Kind::kBroadcast) text += fmt::format(" from rank {}", signature.root);
  if (kind == Kind::kMembership && signature.op == static_cast<uint8_t>(Divisor::kPresent))
    text += " with averages over the active members";
  if (kind == Kind::kBarrier || kind >= Kind::kMembership) return text;
  text += fmt::format("{} of {} tensor{}", signature.on_device ? " on accelerators" : "",
                      signature.tensors, signature.tensors == 1 ? "" : "s");
  if (kind == Kind::kAllGather) return text;
  const auto type = wire::dtype_from_wire(signature.type);
  return text + fmt::format(" with {} elements of {}", signature.elements,
                            type ? c10::toString(*type) : "an unknown type");
}

Error told_error(uint8_t code, const std::string& cause) {
  const bool known = code >= 1 && code <= static_cast<uint8_t>(ErrorCode::kStorageFailed);
  return Error(known ? static_cast<ErrorCode>(code) : ErrorCode::kBadMessage, cause);
}

}  // namespace weft::collective
