// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_worker.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <c10/core/GradMode.h>

namespace weft::collective {

namespace {

// The thread asks the accelerator so often without a rest, then with rests in between: a sixteenth
// of the time that the operation has taken so far, within these bounds.
constexpr int kEagerRounds = 200;
constexpr auto kShortestRest = std::chrono::microseconds(20);
constexpr auto kLongestRest = std::chrono::microseconds(1000);
// How often run() looks for a failure of the channel while the next job is not allowed yet.
constexpr auto kGlance = std::chrono::milliseconds(50);
// After an error of the accelerator: how long the channel has to find out which member is lost.
constexpr auto kExplanation = std::chrono::seconds(2);

}  // namespace

DeviceWorker::DeviceWorker(std::shared_ptr<Channel> channel, std::unique_ptr<DeviceComm> comm)
    : channel_(std::move(channel)), comm_(std::move(comm)) {}

void DeviceWorker::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

DeviceWorker::JobRef DeviceWorker::append() {
  auto job = std::make_shared<Job>();
  const Lock lock(mutex_);
  jobs_.push_back(job);
  return job;
}

void DeviceWorker::allow(const JobRef& job, Begin begin, Algorithm::Done done) {
  std::exception_ptr ended;
  {
    const Lock lock(mutex_);
    ended = ended_;
    if (!ended) {
      job->begin = std::move(begin);
      job->done = std::move(done);
    }
  }
  if (ended) return done(ended);
  changed_.notify_all();
}

void DeviceWorker::withdraw(const JobRef& job) {
  const Lock lock(mutex_);
  std::erase(jobs_, job);
}

void DeviceWorker::run() {
  const c10::AutoGradMode off(false);
  Lock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      changed_.wait(lock.for_waiting());
    } else if (const JobRef job = jobs_.front(); job->done) {
      jobs_.pop_front();
      lock.unlock();
      do_job(job);
      lock.lock();
    } else {
      changed_.wait_for(lock.for_waiting(), kGlance);
      lock.unlock();
      if (const auto error = failure()) give_up(error);
      lock.lock();
    }
  }
  lock.unlock();
  give_up(failure());
}

void DeviceWorker::do_job(const JobRef& job) {
  try {
    job->begin(*comm_);
    wait_until_over();
  } catch (const std::exception&) {
    return give_up(explained(std::current_exception()), job);
  }
  finish(*job, nullptr);
}

void DeviceWorker::finish(Job& job, const std::exception_ptr& error) {
  job.begin = {};  // drops the job's tensors
  std::exchange(job.done, {})(error);
}

// No timeout here: the channel has the deadline, and the channel notices a lost member.
void DeviceWorker::wait_until_over() {
  const auto began = std::chrono::steady_clock::now();
  for (int round = 0; !comm_->is_over(); ++round) {
    if (const auto error = failure()) std::rethrow_exception(error);
    if (round < kEagerRounds) {
      std::this_thread::yield();
      continue;
    }
    const auto taken = std::chrono::steady_clock::now() - began;
    rest(std::clamp(std::chrono::duration_cast<std::chrono::microseconds>(taken / 16),
                    kShortestRest, kLongestRest));
  }
}

void DeviceWorker::rest(std::chrono::microseconds duration) {
  Lock lock(mutex_);
  changed_.wait_for(lock.for_waiting(), duration);
}

// The error that the channel fails with, if it fails soon: that error names the lost member.
// Otherwise `error`.
std::exception_ptr DeviceWorker::explained(const std::exception_ptr& error) {
  const auto until = std::chrono::steady_clock::now() + kExplanation;
  while (std::chrono::steady_clock::now() < until) {
    if (auto cause = failure()) return cause;
    rest(std::chrono::milliseconds(5));
  }
  return error;
}

// `current` is the job that failed. It ends first, so that the channel reports `error` as one of
// its operation.
void DeviceWorker::give_up(const std::exception_ptr& error, const JobRef& current) {
  std::deque<JobRef> given_up;
  {
    const Lock lock(mutex_);
    given_up.swap(jobs_);
    if (std::exchange(ended_, error)) return;  // allow() ends these jobs itself
  }
  if (current) given_up.push_front(current);
  comm_->abort();
  for (const JobRef& job : given_up) {
    if (job->done) finish(*job, error);
  }
}

std::exception_ptr DeviceWorker::failure() {
  if (const auto failure = channel_->failure()) return std::make_exception_ptr(*failure);
  const Lock lock(mutex_);
  if (!stopping_) return nullptr;
  return std::make_exception_ptr(Error(ErrorCode::kInvalidArgument, "it was destroyed"));
}

}  // namespace weft::collective
