// SPDX-License-Identifier: BSD-3-Clause
#include "arena/arena_carrier.h"

#include <atomic>
#include <cstring>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <fmt/format.h>

#include "arena/arena.h"
#include "arena/foreign_arena.h"
#include "wire/torch_version.h"

namespace weft::arena {

namespace {

constexpr size_t kPlaceBytes = 12;

bool nobody_else_has(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

at::Tensor bytes_in(c10::DataPtr memory, size_t bytes) {
  return at::detail::make_tensor<c10::TensorImpl>(wire::make_storage(bytes, std::move(memory)),
                                                  c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                  caffe2::TypeMeta::Make<uint8_t>());
}

class ArenaCarrier final : public wire::Carrier {
 public:
  ArenaCarrier(transport::DescriptorLane& lane, Arena* own)
      : lane_(lane), own_(own), line_(own ? own->begin_line(lane.other_process()) : 0) {}
  ~ArenaCarrier() override {
    if (own_) own_->end_line(line_);
  }

  void stage(Encoder::OutgoingTensor& tensor) override {
    if (!own_ || tensor.staged || tensor.in_frame_only || tensor.bytes < wire::kSmallestCarried)
      return;
    const size_t untaken = untaken_bytes();
    if (untaken > 0 && untaken + tensor.bytes > wire::kMostUntaken) return;
    const bool as_it_is = own_->contains(tensor.data) &&
                          (tensor.borrowed || nobody_else_has(tensor.keep)) &&
                          own_->is_worth_lending(tensor.data, tensor.bytes);
    if (!as_it_is) {
      c10::DataPtr memory = own_->allocate(tensor.bytes);
      if (!memory) return;
      std::memcpy(memory.get(), tensor.data, tensor.bytes);
      tensor.data = memory.get();
      tensor.original = std::exchange(tensor.keep, bytes_in(std::move(memory), tensor.bytes));
    }
    tensor.staged = true;
  }

  std::optional<wire::Place> place(const Encoder::OutgoingTensor& tensor) override {
    if (!own_ || !own_->contains(tensor.data)) return std::nullopt;
    if (!handed_over_) handed_over_ = lane_.hand_over(own_->descriptor_for_neighbour());
    if (!handed_over_) return std::nullopt;
    const std::optional<Arena::Offer> offer = own_->lend(tensor.data, tensor.bytes, line_);
    if (!offer) return std::nullopt;
    has_untaken_.store(true, std::memory_order_relaxed);
    wire::Place place{kArenaCarrier, kPlaceBytes};
    std::memcpy(place.bytes.data(), &offer->loan, sizeof offer->loan);
    std::memcpy(place.bytes.data() + sizeof offer->loan, &offer->offset, sizeof offer->offset);
    return place;
  }

  size_t untaken_bytes() override {
    if (!has_untaken_.load(std::memory_order_relaxed)) return 0;
    const size_t bytes = own_->untaken_bytes(line_);
    if (bytes == 0) has_untaken_.store(false, std::memory_order_relaxed);
    return bytes;
  }

  c10::DataPtr take(const wire::Place& place, size_t bytes) override {
    if (place.carrier != kArenaCarrier || place.size != kPlaceBytes) {
      Decoder::fail(fmt::format("a place of carrier {} with {} bytes", place.carrier, place.size));
    }
    Arena::Offer offer;
    std::memcpy(&offer.loan, place.bytes.data(), sizeof offer.loan);
    std::memcpy(&offer.offset, place.bytes.data() + sizeof offer.loan, sizeof offer.offset);
    if (!theirs_) theirs_ = ForeignArena::map(lane_.take_descriptor());
    return theirs_->take(offer.loan, offer.offset, bytes);
  }

 private:
  transport::DescriptorLane& lane_;
  Arena* const own_;  // null: this process has none
  const uint64_t line_;
  bool handed_over_ = false;              // for place()
  std::atomic<bool> has_untaken_{false};  // perhaps
  std::shared_ptr<ForeignArena> theirs_;  // for take()
};

}  // namespace

std::unique_ptr<wire::Carrier> make_arena_carrier(transport::Connection& connection) {
  transport::DescriptorLane* lane = connection.descriptor_lane();
  // Of a process without a number it would not be known whether it is dead.
  if (!lane || lane->other_process() <= 0) return nullptr;
  return std::make_unique<ArenaCarrier>(*lane, Arena::of_this_process());
}

}  // namespace weft::arena
