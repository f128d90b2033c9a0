// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_channel.h"

#include <algorithm>
#include <utility>

#include "collective/devices/device_algorithm.h"
#include "rpc/functions/describe_exception.h"

namespace weft::collective {

std::shared_ptr<DeviceChannel> DeviceChannel::meet(const std::shared_ptr<Channel>& channel,
                                                   at::Device device,
                                                   std::unique_ptr<DeviceComm> comm) {
  try {
    const std::vector<int>& all = channel->everybody();
    const Place place = channel->place_in(all);
    const Signature signature = signature_of(Kind::kMeeting, {});
    const Outcome met =
        channel->start(signature, all, identities_algorithm(place, comm->identity())).wait();
    const std::vector<std::string> identities = identities_in(met.chunks);
    const bool all_can = std::find(identities.begin(), identities.end(), "") == identities.end();
    if (!all_can || !comm->fits(identities)) return nullptr;
    const std::string invitation = place.own == 0 ? comm->invitation() : std::string();
    auto device_channel = of_met(channel, device, std::move(comm));
    device_channel->connect(invitation);
    return device_channel;
  } catch (const std::exception& error) {
    // Tell the others: they would wait for the rest of the meeting.
    const auto* typed = dynamic_cast<const Error*>(&error);
    channel->fail_and_tell(
        typed ? *typed
              : Error(ErrorCode::kBadMessage, rpc::describe_exception(std::current_exception())));
    throw;
  }
}

std::shared_ptr<DeviceChannel> DeviceChannel::of_met(const std::shared_ptr<Channel>& channel,
                                                     at::Device device,
                                                     std::unique_ptr<DeviceComm> comm) {
  return std::shared_ptr<DeviceChannel>(new DeviceChannel(channel, device, std::move(comm)));
}

DeviceChannel::DeviceChannel(std::shared_ptr<Channel> channel, at::Device device,
                             std::unique_ptr<DeviceComm> comm)
    : channel_(std::move(channel)),
      device_(device),
      worker_(std::make_shared<DeviceWorker>(channel_, std::move(comm))),
      thread_([worker = worker_] { worker->run(); }) {}

DeviceChannel::~DeviceChannel() {
  worker_->stop();
  // The worker's thread settles outcomes. Code that waits for an outcome may drop the last
  // reference to this channel, and then this destructor runs on that thread.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void DeviceChannel::connect(const std::string& invitation) {
  enter(signature_of(Kind::kMeeting, {}), [&](Place place, DeviceWorker::JobRef job) {
    return connecting_algorithm(place, worker_, std::move(job), invitation);
  }).wait();
}

bool DeviceChannel::takes(Kind kind, ReduceOp op, const Tensors& tensors) const {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device() == device_ && tensor.layout() == c10::kStrided &&
           worker_->comm().takes(kind, op, tensor.scalar_type());
  });
}

Future<Outcome> DeviceChannel::start(const Signature& signature, DeviceOperation work) {
  work.come_after_current_work(device_);
  return enter(signature, [&](Place place, DeviceWorker::JobRef job) {
    return device_algorithm(place, worker_, std::move(job), std::move(work));
  });
}

Future<Outcome> DeviceChannel::start_all_gather(const Signature& signature,
                                                const at::Tensor& tensor) {
  DeviceOperation work{.kind = Kind::kAllGather};
  const at::Tensor own = tensor.detach().clone(c10::MemoryFormat::Contiguous);
  work.come_after_current_work(device_);
  return enter(signature, [&](Place place, DeviceWorker::JobRef job) {
    return device_all_gather_algorithm(place, worker_, std::move(job), own, std::move(work));
  });
}

Future<Outcome> DeviceChannel::start_reduce_scatter(const Signature& signature,
                                                    const Tensors& tensors,
                                                    const Folding& folding) {
  DeviceOperation work{.kind = Kind::kReduceScatter, .folding = folding};
  for (const at::Tensor& each : tensors) work.tensors.push_back(flat(each.detach()));
  // The operation changes the own tensor; the caller's must stay as it is.
  at::Tensor& own = work.tensors[channel_->place_in(channel_->everybody()).own];
  own = own.clone();
  const at::Tensor result = own;
  return start(signature, std::move(work)).then([result](const Outcome&) {
    return Outcome{{{result}}, {}};
  });
}

// Under `starting_`, so that the order of the worker's jobs is that of the channel's operations.
Future<Outcome> DeviceChannel::enter(Signature signature, const MakeAlgorithm& make_algorithm) {
  signature.on_device = 1;
  const base::MutexLock one_at_a_time(starting_);
  const DeviceWorker::JobRef job = worker_->append();
  try {
    return channel_->start(signature, channel_->everybody(),
                           make_algorithm(channel_->place_in(channel_->everybody()), job));
  } catch (...) {
    worker_->withdraw(job);
    throw;
  }
}

}  // namespace weft::collective
