// SPDX-License-Identifier: BSD-3-Clause
#include "collective/nccl/nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "collective/nccl/nccl_library.h"
#include "weft/error.h"
#include "wire/torch_version.h"

namespace weft::collective {

namespace {

constexpr auto kLongestEnd = std::chrono::seconds(10);

// NCCL refuses two processes that use the same GPU of the same host. It compares hosts by
// NCCL_HOSTID if that is set, so this does too.
std::string host() {
  if (const char* named = std::getenv("NCCL_HOSTID")) return named;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

std::optional<nccl::DataType> reducible(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Char:
      return nccl::kInt8;
    case c10::ScalarType::Byte:
      return nccl::kUint8;
    case c10::ScalarType::Int:
      return nccl::kInt32;
    case c10::ScalarType::Long:
      return nccl::kInt64;
    case c10::ScalarType::Half:
      return nccl::kFloat16;
    case c10::ScalarType::Float:
      return nccl::kFloat32;
    case c10::ScalarType::Double:
      return nccl::kFloat64;
    case c10::ScalarType::BFloat16:
      return nccl::kBfloat16;
    default:
      return std::nullopt;
  }
}

class NcclComm final : public DeviceComm {
 public:
  NcclComm(Place place, at::Device device) : place_(place), device_(device) {}
  ~NcclComm() override { abort(); }

  std::string identity() override;
  bool fits(const std::vector<std::string>& identities) const override;
  bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const override;

  std::string invitation() override;
  void begin_connecting(const std::string& invitation) override;
  void begin(const DeviceOperation& work) override;
  bool is_over() override;
  void abort() noexcept override;

 private:
  void check(nccl::Result result, const char* what) const;
  void queue(const DeviceOperation& work);
  void queue_broadcast(const at::Tensor& tensor, size_t root);
  void scale(const DeviceOperation& work);

  const Place place_;
  const at::Device device_;
  const NcclLibrary* const nccl_ = NcclLibrary::get();
  nccl::Comm comm_ = nullptr;
  std::optional<c10::Stream> stream_;

  // The operation that was begun last. `queueing_`: NCCL has not put all of it on the stream yet.
  // `done_`: the device has not done it yet.
  std::optional<DeviceOperation> queueing_;
  std::optional<c10::Event> done_;
};

std::string NcclComm::identity() {
  if (!nccl_ || !device_.is_cuda()) return {};
  stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_, true);
  const std::string bus = bus_of_gpu(device_.index());
  int version = 0;
  if (!wire::native_handle(*stream_) || bus.empty() ||
      nccl_->get_version(&version) != nccl::kSuccess) {
    return {};
  }
  return fmt::format("{}/{}/NCCL {}", host(), bus, version);
}

// All members need the same version of NCCL, and each a GPU that no other member uses.
bool NcclComm::fits(const std::vector<std::string>& identities) const {
  std::set<std::string> gpus, versions;
  for (const std::string& identity : identities) {
    const auto version = identity.rfind('/');
    if (version == std::string::npos) return false;
    gpus.insert(identity.substr(0, version));
    versions.insert(identity.substr(version));
  }
  return gpus.size() == identities.size() && versions.size() == 1;
}

bool NcclComm::takes(Kind kind, ReduceOp op, c10::ScalarType type) const {
  switch (kind) {
    case Kind::kBroadcast:
    case Kind::kAllGather:
      return !c10::isQIntType(type);  // both only move bytes
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      return (op == ReduceOp::kSum || op == ReduceOp::kAverage) && reducible(type);
    default:
      return false;
  }
}

// NCCL listens for the other members from now on.
std::string NcclComm::invitation() {
  nccl::UniqueId id{};
  check(nccl_->get_unique_id(&id), "ncclGetUniqueId");
  return {id.bytes.begin(), id.bytes.end()};
}

void NcclComm::begin_connecting(const std::string& invitation) {
  nccl::UniqueId id{};
  if (invitation.size() != id.bytes.size()) {
    throw Error(ErrorCode::kBadMessage, "an invitation to NCCL that is none");
  }
  std::copy(invitation.begin(), invitation.end(), id.bytes.begin());
  const c10::DeviceGuard on_device(device_);
  nccl::Config config;
  check(nccl_->comm_init(&comm_, static_cast<int>(place_.size), id, static_cast<int>(place_.own),
                         &config),
        "ncclCommInitRankConfig");
}

void NcclComm::begin(const DeviceOperation& work) {
  const c10::DeviceGuard on_device(device_);
  for (const auto& event : work.after) event->block(*stream_);
  queueing_ = work;
  check(nccl_->group_start(), "ncclGroupStart");
  try {
    queue(work);
  } catch (const Error&) {
    nccl_->group_end();
    throw;
  }
  check(nccl_->group_end(), "ncclGroupEnd");
}

void NcclComm::queue(const DeviceOperation& work) {
  const nccl::Stream stream = wire::native_handle(*stream_);
  for (size_t i = 0; i < work.tensors.size(); ++i) {
    const at::Tensor& tensor = work.tensors[i];
    void* data = tensor.data_ptr();
    const auto count = static_cast<size_t>(tensor.numel());
    if (work.kind == Kind::kBroadcast) {
      queue_broadcast(tensor, work.root);
    } else if (work.kind == Kind::kAllGather) {
      queue_broadcast(tensor, i);
    } else if (work.kind == Kind::kAllReduce) {
      check(nccl_->all_reduce(data, data, count, *reducible(tensor.scalar_type()), nccl::kSum,
                              comm_, stream),
            "ncclAllReduce");
    } else {
      check(nccl_->reduce(data, data, count, *reducible(tensor.scalar_type()), nccl::kSum,
                          static_cast<int>(i), comm_, stream),
            "ncclReduce");
    }
  }
}

void NcclComm::queue_broadcast(const at::Tensor& tensor, size_t root) {
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  check(nccl_->broadcast(tensor.data_ptr(), tensor.data_ptr(), bytes, nccl::kUint8,
                         static_cast<int>(root), comm_, wire::native_handle(*stream_)),
        "ncclBroadcast");
}

bool NcclComm::is_over() {
  if (done_) {
    if (!done_->query()) {
      nccl::Result result = nccl::kSuccess;
      check(nccl_->comm_error(comm_, &result), "ncclCommGetAsyncError");
      check(result, "the operation");
      return false;
    }
    done_.reset();
    return true;
  }
  nccl::Result result = nccl::kSuccess;
  check(nccl_->comm_error(comm_, &result), "ncclCommGetAsyncError");
  if (result == nccl::kInProgress) return false;
  check(result, queueing_ ? "the operation" : "connecting");
  if (!queueing_) return true;  // begin_connecting() was last, and the members are connected
  scale(*queueing_);
  queueing_.reset();
  done_.emplace(device_.type());
  done_->record(*stream_);
  return false;
}

void NcclComm::scale(const DeviceOperation& work) {
  if (work.folding.scale == 1) return;
  const c10::StreamGuard on_stream(*stream_);
  for (size_t i = 0; i < work.tensors.size(); ++i) {
    const bool is_ours = work.kind == Kind::kAllReduce || i == place_.own;
    if (is_ours) at::Tensor(work.tensors[i]).mul_(work.folding.scale);
  }
}

void NcclComm::abort() noexcept {
  if (!comm_) return;
  nccl_->comm_abort(std::exchange(comm_, nullptr));
  // Wait for the stream: the aborted operation must not use its tensors any more.
  try {
    const auto until = std::chrono::steady_clock::now() + kLongestEnd;
    while (!stream_->query() && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  } catch (const std::exception&) {
    // The device itself is broken: the next use of it will report that.
  }
}

void NcclComm::check(nccl::Result result, const char* what) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  const char* text = comm_ ? nccl_->last_error(comm_) : nullptr;
  const bool is_lost = result == nccl::kRemoteError || result == nccl::kSystemError;
  throw Error(is_lost ? ErrorCode::kPeerLost : ErrorCode::kUnavailable,
              fmt::format("NCCL on {}: {} failed: {}{}{}; with GroupOptions::nccl set to false "
                          "tensors travel through the CPU",
                          device_.str(), what, nccl_->error_string(result),
                          text && *text ? ": " : "", text ? text : ""));
}

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_comm(Place place, at::Device device) {
  return std::make_unique<NcclComm>(place, device);
}

}  // namespace weft::collective
