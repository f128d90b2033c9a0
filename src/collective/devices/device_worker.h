// The thread that has a DeviceComm do one job after the other.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "collective/channels/channel.h"
#include "collective/devices/device_comm.h"

namespace weft::collective {

class DeviceWorker {
 public:
  /// Begins the job's work.
  using Begin = std::function<void(DeviceComm&)>;
  struct Job {
    Begin begin;
    // Empty until allow(): the members have not exchanged announcements, so the job must not begin.
    Algorithm::Done done;
  };
  using JobRef = std::shared_ptr<Job>;

  DeviceWorker(std::shared_ptr<Channel> channel, std::unique_ptr<DeviceComm> comm);
  DeviceWorker(const DeviceWorker&) = delete;

  const DeviceComm& comm() const { return *comm_; }

  /// Does the jobs, until stop(). To be called once, by a thread of its own.
  void run();
  /// Ends run(), which gives up the jobs that are left.
  void stop();

  /// Adds a job at the end. It begins when it is allowed and the jobs before it are over.
  JobRef append();
  /// From now on the job may begin. `done` is called once, also if the channel fails.
  void allow(const JobRef& job, Begin begin, Algorithm::Done done);
  /// Removes a job whose operation could not be started.
  void withdraw(const JobRef& job);

 private:
  using Lock = base::MutexLock;

  void do_job(const JobRef& job);
  static void finish(Job& job, const std::exception_ptr& error);
  void wait_until_over();
  void rest(std::chrono::microseconds duration);
  std::exception_ptr explained(const std::exception_ptr& error);
  void give_up(const std::exception_ptr& error, const JobRef& current = nullptr);
  std::exception_ptr failure();

  const std::shared_ptr<Channel> channel_;
  const std::unique_ptr<DeviceComm> comm_;

  base::Mutex mutex_;
  std::condition_variable changed_;
  std::deque<JobRef> jobs_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr ended_ WEFT_GUARDED_BY(mutex_);  // the error with which the worker gave up
  bool stopping_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::collective
