// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_algorithm.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "weft/error.h"
#include "wire/dtype.h"

namespace weft::collective {

namespace {

constexpr size_t kMostDimensions = 64;
constexpr int64_t kMostElements = int64_t{1} << 48;

at::Tensor tensor_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

at::Tensor tensor_of(const std::vector<int64_t>& values) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), numbers.data_ptr<int64_t>());
  return numbers;
}

template <typename T>
std::vector<T> values_of(const at::Tensor& announcement) {
  const T* values = announcement.data_ptr<T>();
  return {values, values + announcement.numel()};
}

// Throws kBadMessage unless `chunk`, which another member sent, is one tensor of this type.
void check_announcement(const Tensors& chunk, c10::ScalarType type) {
  const bool is_announcement = chunk.size() == 1 && chunk[0].defined() &&
                               chunk[0].scalar_type() == type &&
                               chunk[0].layout() == c10::kStrided && chunk[0].is_contiguous();
  if (!is_announcement)
    throw Error(ErrorCode::kBadMessage, "something else than what a member brings");
}

std::string text_of(const Tensors& chunk) {
  check_announcement(chunk, at::kByte);
  const auto bytes = values_of<uint8_t>(chunk[0]);
  return {bytes.begin(), bytes.end()};
}

class Connecting final : public DeviceAlgorithm {
 public:
  Connecting(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
             const std::string& invitation)
      : DeviceAlgorithm(place, std::move(worker), std::move(job), tensor_of(invitation)) {}

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& announcements) override {
    return [invitation = text_of({announcements.front()})](DeviceComm& comm) {
      comm.begin_connecting(invitation);
    };
  }
};

std::vector<int64_t> sizes_of(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

class OfSameSizes final : public DeviceAlgorithm {
 public:
  OfSameSizes(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
              DeviceOperation work)
      : DeviceAlgorithm(place, std::move(worker), std::move(job),
                        tensor_of(sizes_of(work.tensors))),
        work_(std::move(work)) {}

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& announcements) override {
    const std::vector<int64_t> own = sizes_of(work_.tensors);
    for (size_t i = 0; i < announcements.size(); ++i)
      check(own, i, values_of<int64_t>(announcements[i]));
    return [work = std::move(work_)](DeviceComm& comm) { comm.begin(work); };
  }

 private:
  static void check(const std::vector<int64_t>& own, size_t place,
                    const std::vector<int64_t>& theirs) {
    const auto [mine, other] = std::mismatch(own.begin(), own.end(), theirs.begin(), theirs.end());
    if (mine == own.end() && other == theirs.end()) return;
    if (mine == own.end() || other == theirs.end()) {
      throw Error(ErrorCode::kBadMessage,
                  fmt::format("{} tensors here, {} at place {}", own.size(), theirs.size(), place));
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensor {} has {} elements here, {} at place {}", mine - own.begin(),
                            *mine, *other, place));
  }

  DeviceOperation work_;
};

// The number of the type on the wire, then the shape. libtorch's own number of the type would not
// do: another member may run another version of libtorch.
std::vector<int64_t> description_of(const at::Tensor& tensor) {
  const auto type = wire::dtype_to_wire(tensor.scalar_type());
  if (!type) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("all_gather of {}, a type that does not travel",
                            c10::toString(tensor.scalar_type())));
  }
  std::vector<int64_t> description{*type};
  description.insert(description.end(), tensor.sizes().begin(), tensor.sizes().end());
  return description;
}

// An uninitialized tensor of the type and shape that another member described.
at::Tensor make_like(const std::vector<int64_t>& description, at::Device device) {
  bool fits = !description.empty() && description.size() <= kMostDimensions &&
              description[0] >= 0 && description[0] <= std::numeric_limits<uint8_t>::max();
  int64_t elements = 1;
  for (size_t i = 1; fits && i < description.size(); ++i) {
    const int64_t size = description[i];
    fits = size >= 0 && (size == 0 || elements <= kMostElements / size);
    if (fits) elements *= size;
  }
  const auto type =
      fits ? wire::dtype_from_wire(static_cast<uint8_t>(description[0])) : std::nullopt;
  if (!type) throw Error(ErrorCode::kBadMessage, "the description of a tensor that cannot be");
  const at::IntArrayRef sizes(description.data() + 1, description.size() - 1);
  return at::empty(sizes, at::TensorOptions().dtype(*type).device(device));
}

class DeviceAllGather final : public DeviceAlgorithm {
 public:
  DeviceAllGather(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
                  const at::Tensor& own, DeviceOperation work)
      : DeviceAlgorithm(place, std::move(worker), std::move(job), tensor_of(description_of(own))),
        own_(own),
        work_(std::move(work)) {}

  std::vector<Tensors> take_result() override { return std::move(result_); }

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& announcements) override {
    for (size_t i = 0; i < announcements.size(); ++i) {
      const bool is_own = i == place().own;
      work_.tensors.push_back(
          is_own ? own_ : make_like(values_of<int64_t>(announcements[i]), own_.device()));
      result_.push_back({work_.tensors.back()});
    }
    // make_like() may have got memory that the allocator reuses: earlier work on the device may
    // still be using it.
    work_.come_after_current_work(own_.device());
    return [work = std::move(work_)](DeviceComm& comm) { comm.begin(work); };
  }

 private:
  const at::Tensor own_;
  DeviceOperation work_;
  std::vector<Tensors> result_;
};

}  // namespace

DeviceAlgorithm::DeviceAlgorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                 DeviceWorker::JobRef job, at::Tensor announcement)
    : Algorithm(place, 2),
      worker_(std::move(worker)),
      job_(std::move(job)),
      announcement_(std::move(announcement)) {}

void DeviceAlgorithm::work_elsewhere(std::vector<Tensors> chunks, Done done) {
  chunks[place().own] = {announcement_};
  std::vector<at::Tensor> announcements;
  for (const Tensors& chunk : chunks) {
    check_announcement(chunk, announcement_.scalar_type());
    announcements.push_back(chunk[0]);
  }
  worker_->allow(job_, prepare(announcements), std::move(done));
}

std::unique_ptr<Algorithm> identities_algorithm(Place place, const std::string& identity) {
  return all_gather_algorithm(place, {tensor_of(identity)});
}

std::vector<std::string> identities_in(const std::vector<Tensors>& result) {
  std::vector<std::string> identities;
  for (const Tensors& chunk : result) identities.push_back(text_of(chunk));
  return identities;
}

std::unique_ptr<Algorithm> connecting_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                                DeviceWorker::JobRef job,
                                                const std::string& invitation) {
  return std::make_unique<Connecting>(place, std::move(worker), std::move(job), invitation);
}

std::unique_ptr<Algorithm> device_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                            DeviceWorker::JobRef job, DeviceOperation work) {
  return std::make_unique<OfSameSizes>(place, std::move(worker), std::move(job), std::move(work));
}

std::unique_ptr<Algorithm> device_all_gather_algorithm(Place place,
                                                       std::shared_ptr<DeviceWorker> worker,
                                                       DeviceWorker::JobRef job,
                                                       const at::Tensor& own,
                                                       DeviceOperation work) {
  return std::make_unique<DeviceAllGather>(place, std::move(worker), std::move(job), own,
                                           std::move(work));
}

}  // namespace weft::collective
