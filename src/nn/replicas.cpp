// SPDX-License-Identifier: BSD-3-Clause
#include "nn/replicas.h"

#include <cxxabi.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/room.h"
#include "collective/flat_tensor.h"
#include "nn/wait_for_all.h"
#include "wire/dtype.h"

namespace weft::nn {

using collective::Channel;
using collective::FlatTensor;
using collective::Kind;
using collective::Tensors;

namespace {

// Well below the 4,096 tensors that fit into a message.
constexpr size_t kMostAtOnce = 1000;

// Numbers devices from zero in the order in which they first appear. The parameters of a bucket are
// on one device, so the members must agree which parameters share one; the devices themselves may
// differ.
class DeviceNumbers {
 public:
  size_t of(at::Device device) {
    const auto found = std::find(devices_.begin(), devices_.end(), device);
    const auto number = static_cast<size_t>(found - devices_.begin());
    if (found == devices_.end()) devices_.push_back(device);
    return number;
  }

 private:
  std::vector<at::Device> devices_;
};

std::string description(const NamedTensor& named, at::Device device, DeviceNumbers& numbers) {
  const at::Tensor& tensor = named.second;
  const bool is_there = !device.is_cpu() && tensor.device() == device;
  const size_t number = tensor.requires_grad() ? numbers.of(tensor.device()) : 0;
  return fmt::format(
      "{} of {} [{}], strides [{}]{}{}{}\n", named.first, c10::toString(tensor.scalar_type()),
      fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", "),
      tensor.requires_grad() ? "" : ", without gradient", is_there ? ", on its accelerator" : "",
      number > 0 ? fmt::format(", on device {} of those of its module", number + 1) : "");
}

at::Tensor as_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

// The text that another member sent as a tensor.
std::string as_text(const Tensors& part) {
  if (part.size() != 1 || !part[0].defined() || part[0].scalar_type() != at::kByte ||
      !part[0].is_contiguous()) {
    throw Error(ErrorCode::kBadMessage, "a description of a module that is no text");
  }
  const uint8_t* bytes = part[0].data_ptr<uint8_t>();
  return std::string(bytes, bytes + part[0].numel());
}

// The first lines that differ; "nothing" if one text has no more lines.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string one, other;
  for (;;) {
    const bool has_one(std::getline(left, one));
    const bool has_other(std::getline(right, other));
    if (!has_one) one = "nothing";
    if (!has_other) other = "nothing";
    if (one != other || (!has_one && !has_other)) return {one, other};
  }
}

}  // namespace

void check_same(Channel& channel, const std::vector<WorkerInfo>& members,
                const std::vector<NamedTensor>& tensors, at::Device device) {
  DeviceNumbers numbers;
  std::string mine;
  for (const NamedTensor& each : tensors) mine += description(each, device, numbers);
  const Tensors sent{as_tensor(mine)};
  const auto outcome =
      channel
          .start(collective::signature_of(Kind::kAllGather, sent), channel.everybody(),
                 collective::all_gather_algorithm(channel.place_in(channel.everybody()), sent))
          .wait();
  for (size_t i = 0; i < outcome.chunks.size(); ++i) {
    const std::string theirs = as_text(outcome.chunks[i]);
    if (theirs == mine) continue;
    const auto [here, there] = first_difference(mine, theirs);
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the members of the group bring different modules: {} has {}, {} has {}",
                    members[static_cast<size_t>(channel.rank())].name, here, members[i].name,
                    there));
  }
}

void broadcast_all(const collective::DualChannel& dual, const std::vector<int>& ranks,
                   const std::vector<at::Tensor>& tensors, int root) {
  // One broadcast for each type and way (direct or through the CPU). The types are in the order of
  // their numbers on the wire, which do not depend on the version of libtorch.
  std::map<std::pair<std::optional<uint8_t>, bool>, std::vector<FlatTensor>> alike;
  for (const at::Tensor& each : tensors) {
    const bool direct = dual.is_direct(Kind::kBroadcast, {each}, ranks);
    alike[{wire::dtype_to_wire(each.scalar_type()), direct}].emplace_back(each, direct);
  }
  std::vector<Future<collective::Outcome>> begun;
  const auto begin = [&](const std::vector<FlatTensor>& flat, size_t first) {
    const size_t last = std::min(first + kMostAtOnce, flat.size());
    Tensors values;
    for (size_t i = first; i < last; ++i) values.push_back(flat[i].values());
    const auto signature = collective::signature_of(Kind::kBroadcast, values, ReduceOp::kSum, root);
    base::make_room(begun, begun.size() + 1);
    begun.push_back(dual.broadcast(signature, values, ranks));
  };
  try {
    for (const auto& [key, flat] : alike) {
      for (size_t first = 0; first < flat.size(); first += kMostAtOnce) begin(flat, first);
    }
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    wait_for_outcomes(begun);  // the tensors are the caller's again
    throw;
  }
  wait_for_all(begun);
  for (const auto& [key, flat] : alike) {
    for (const FlatTensor& each : flat) each.bring_back();
  }
}

}  // namespace weft::nn
