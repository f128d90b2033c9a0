// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_course.h"

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

at::Tensor card_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

at::Tensor card_of(const std::vector<int64_t>& values) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), numbers.data_ptr<int64_t>());
  return numbers;
}

template <typename T>
std::vector<T> values_of(const at::Tensor& card) {
  const T* values = card.data_ptr<T>();
  return {values, values + card.numel()};
}

// From another member.
void check_card(const Tensors& part, c10::ScalarType type) {
  const bool is_card = part.size() == 1 && part[0].defined() && part[0].scalar_type() == type &&
                       part[0].layout() == c10::kStrided && part[0].is_contiguous();
  if (!is_card) throw Error(ErrorCode::kBadMessage, "something else than what a member brings");
}

std::string text_of(const Tensors& part) {
  check_card(part, at::kByte);
  const auto bytes = values_of<uint8_t>(part[0]);
  return {bytes.begin(), bytes.end()};
}

class Connecting final : public DeviceCourse {
 public:
  Connecting(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
             const std::string& invitation)
      : DeviceCourse(place, std::move(worker), std::move(job), card_of(invitation)) {}

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& cards) override {
    return [invitation = text_of({cards.front()})](DeviceComm& comm) {
      comm.begin_connecting(invitation);
    };
  }
};

std::vector<int64_t> sizes_of(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

class OfSameSizes final : public DeviceCourse {
 public:
  OfSameSizes(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
              DeviceWork work)
      : DeviceCourse(place, std::move(worker), std::move(job), card_of(sizes_of(work.tensors))),
        work_(std::move(work)) {}

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& cards) override {
    const std::vector<int64_t> own = sizes_of(work_.tensors);
    for (size_t i = 0; i < cards.size(); ++i) check(own, i, values_of<int64_t>(cards[i]));
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

  DeviceWork work_;
};

// The type's number on the wire, then the shape. libtorch's own numbers stay out of it: another
// member may run another version.
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

// Of another member.
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

class Gathering final : public DeviceCourse {
 public:
  Gathering(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
            const at::Tensor& own, DeviceWork work)
      : DeviceCourse(place, std::move(worker), std::move(job), card_of(description_of(own))),
        own_(own),
        work_(std::move(work)) {}

  std::vector<Tensors> take_result() override { return std::move(result_); }

 protected:
  DeviceWorker::Begin prepare(const std::vector<at::Tensor>& cards) override {
    for (size_t i = 0; i < cards.size(); ++i) {
      const bool is_own = i == place().own;
      work_.tensors.push_back(is_own ? own_
                                     : make_like(values_of<int64_t>(cards[i]), own_.device()));
      result_.push_back({work_.tensors.back()});
    }
    // Their memory may have been somebody else's, who is done with it in the order of the device.
    work_.come_after_current_work(own_.device());
    return [work = std::move(work_)](DeviceComm& comm) { comm.begin(work); };
  }

 private:
  const at::Tensor own_;
  DeviceWork work_;
  std::vector<Tensors> result_;
};

}  // namespace

DeviceCourse::DeviceCourse(Place place, std::shared_ptr<DeviceWorker> worker,
                           DeviceWorker::JobRef job, at::Tensor card)
    : Course(place, 2), worker_(std::move(worker)), job_(std::move(job)), card_(std::move(card)) {}

void DeviceCourse::work_elsewhere(std::vector<Tensors> parts, Done done) {
  parts[place().own] = {card_};
  std::vector<at::Tensor> cards;
  for (const Tensors& part : parts) {
    check_card(part, card_.scalar_type());
    cards.push_back(part[0]);
  }
  worker_->allow(job_, prepare(cards), std::move(done));
}

std::unique_ptr<Course> cards_course(Place place, const std::string& card) {
  return all_gather_course(place, {card_of(card)});
}

std::vector<std::string> cards_in(const std::vector<Tensors>& result) {
  std::vector<std::string> cards;
  for (const Tensors& part : result) cards.push_back(text_of(part));
  return cards;
}

std::unique_ptr<Course> connecting_course(Place place, std::shared_ptr<DeviceWorker> worker,
                                          DeviceWorker::JobRef job, const std::string& invitation) {
  return std::make_unique<Connecting>(place, std::move(worker), std::move(job), invitation);
}

std::unique_ptr<Course> device_course(Place place, std::shared_ptr<DeviceWorker> worker,
                                      DeviceWorker::JobRef job, DeviceWork work) {
  return std::make_unique<OfSameSizes>(place, std::move(worker), std::move(job), std::move(work));
}

std::unique_ptr<Course> device_all_gather_course(Place place, std::shared_ptr<DeviceWorker> worker,
                                                 DeviceWorker::JobRef job, const at::Tensor& own,
                                                 DeviceWork work) {
  return std::make_unique<Gathering>(place, std::move(worker), std::move(job), own,
                                     std::move(work));
}

}  // namespace weft::collective
