// Operations on accelerators as their channel sees them: the members tell each other what they
// bring, then a worker does the work, then they tell each other that it is done.
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
  /// `identity` is what the others get to see.
  DeviceAlgorithm(Place place, std::shared_ptr<DeviceWorker> worker, DeviceWorker::JobRef job,
                  at::Tensor identity);

  Sendings begin() override { return to_others(0, {identity_}); }
  bool expects(uint8_t, size_t from) const override { return from != place().own; }
  bool works_elsewhere(uint8_t phase) const override { return phase == 0; }
  void work_elsewhere(std::vector<Tensors> chunks, Done done) override;
  Sendings go_on(uint8_t phase, std::vector<Tensors>) override {
    return phase == 0 ? to_others(1, {}) : Sendings();
  }

 protected:
  /// The work to be done, now that the identities of all members are there, by place. Throws if
  /// they do not fit.
  virtual DeviceWorker::Begin prepare(const std::vector<at::Tensor>& identities) = 0;

 private:
  const std::shared_ptr<DeviceWorker> worker_;
  const DeviceWorker::JobRef job_;
  const at::Tensor identity_;
};

/// The members show each other their identities. The result has them, by place.
std::unique_ptr<Algorithm> cards_algorithm(Place place, const std::string& identity);
std::vector<std::string> cards_in(const std::vector<Tensors>& result);
/// They connect their accelerators, with the first one's invitation.
std::unique_ptr<Algorithm> connecting_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                                DeviceWorker::JobRef job,
                                                const std::string& invitation);
/// An operation on tensors with the same numbers of elements.
std::unique_ptr<Algorithm> device_algorithm(Place place, std::shared_ptr<DeviceWorker> worker,
                                            DeviceWorker::JobRef job, DeviceOperation work);
/// Gathers tensors of any shape; the result has all of them, by place.
std::unique_ptr<Algorithm> device_all_gather_algorithm(Place place,
                                                       std::shared_ptr<DeviceWorker> worker,
                                                       DeviceWorker::JobRef job,
                                                       const at::Tensor& own, DeviceOperation work);

}  // namespace weft::collective
