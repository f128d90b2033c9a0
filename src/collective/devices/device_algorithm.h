// Operations on accelerators as their channel sees them. In phase 0 the members send each other an
// announcement; then the DeviceWorker of each member does the work; in phase 1 they tell each other
// that it is done.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/algorithms/algorithm.h"
#include "collective/devices/device_comm.h"
#include "collective/devices/device_worker.h"

namespace weft::collective {

class DeviceAlgorithm : public Algorithm {
 public:
  /// `announcement` is what this member sends to every other member in phase 0: the invitation, the
  /// sizes of its tensors, or the type and shape of its tensor.
  DeviceAlgorithm(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
                  at::Tensor announcement);

  Sendings begin() override { return to_others(0, {announcement_}); }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  bool works_elsewhere(uint8_t phase) const override { return phase == 0; }
  void work_elsewhere(std::vector<Tensors> chunks, Done done) override;
  Sendings go_on(uint8_t phase, std::vector<Tensors>) override {
    return phase == 0 ? to_others(1, {}) : Sendings();
  }

 protected:
  /// Called when the announcements of all members are there, by place. Returns the work for the
  /// DeviceWorker. Throws if the announcements do not fit together.
  virtual DeviceWorker::Begin prepare(const std::vector<at::Tensor>& announcements) = 0;

 private:
  const std::shared_ptr<DeviceWorker> worker_;
  const DeviceWorker::JobRef job_;
  const at::Tensor announcement_;
};

/// The members send each other their DeviceComm's identities. identities_in() reads them from the
/// result, by place.
std::unique_ptr<Algorithm> identities_algorithm(Place place, const std::string& identity);
std::vector<std::string> identities_in(const std::vector<Tensors>& result);
/// The members connect their accelerators with the invitation of the first member; the others pass
/// an empty one.
std::unique_ptr<Algorithm> connecting_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                                DeviceWorker::JobRef job,
                                                const std::string& invitation);
/// For all operations but all_gather. Every member must give tensors with the same numbers of
/// elements.
std::unique_ptr<Algorithm> device_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                            DeviceWorker::JobRef job, DeviceOperation work);
/// Gathers tensors of any type and shape, one from each member. The result has all of them, by
/// place.
std::unique_ptr<Algorithm> device_all_gather_algorithm(Place place,
                                                       std::shared_ptr<DeviceWorker> worker,
                                                       DeviceWorker::JobRef job,
                                                       const at::Tensor& own, DeviceOperation work);

}  // namespace weft::collective
