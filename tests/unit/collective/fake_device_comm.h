// A DeviceComm whose device is the CPU: the members, threads of one process, exchange their tensors
// in memory. The test says what goes wrong; that it is used as it wants to be is checked here.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "collective/devices/device_comm.h"

namespace weft::collective::test {

inline constexpr auto kBound = std::chrono::seconds(20);

/// Whether `condition` becomes true in time.
template <typename F>
bool eventually(const F& condition) {
  const auto bound = std::chrono::steady_clock::now() + kBound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > bound) return false;
    std::this_thread::yield();
  }
  return true;
}

/// What lies between the devices of the members.
class Fabric : public std::enable_shared_from_this<Fabric> {
 public:
  struct Member {
    // What the test wants, before the comm is used. Operations count from zero.
    std::string identity = "an identity";
    bool fits = true;
    size_t polls = 3;  // so often at least it is not over
    std::function<void(const std::string&)> on_meeting = [](const std::string&) {};  // at a step
    std::function<void(size_t)> on_begin = [](size_t) {}, on_poll = [](size_t) {};
    std::function<void()> on_abort = [] {};
    std::optional<size_t> hangs_at;  // never over, before it is aborted

    // What has happened.
    std::atomic<bool> connecting{false};
    std::atomic<size_t> begun{0}, aborted{0}, alive{0};
    std::vector<std::string> order;
  };

  explicit Fabric(size_t size) : members(size) {}

  std::unique_ptr<DeviceComm> comm(int rank);
  size_t begun() const {
    size_t all = 0;
    for (const Member& each : members) all += each.begun;
    return all;
  }

  std::vector<Member> members;
  std::atomic<bool> held{false};  // nothing that was begun is over

 private:
  friend class FakeComm;
  using Works = std::map<size_t, DeviceOperation>;  // by place

  void bring(size_t number, size_t place, DeviceOperation work) {
    const std::lock_guard lock(mutex_);
    brought_[number].emplace(place, std::move(work));
  }
  /// What all have brought, once they have.
  std::optional<Works> brought(size_t number) {
    const std::lock_guard lock(mutex_);
    const Works& works = brought_[number];
    return works.size() == members.size() ? std::optional(works) : std::nullopt;
  }

  std::mutex mutex_;
  std::map<size_t, Works> brought_;
};

class FakeComm final : public DeviceComm {
 public:
  FakeComm(std::shared_ptr<Fabric> fabric, size_t place)
      : fabric_(std::move(fabric)), place_(place), member_(fabric_->members[place]) {
    ++member_.alive;
  }
  ~FakeComm() override { --member_.alive; }

  std::string identity() override {
    member_.on_meeting("identity");
    return member_.identity;
  }
  bool fits(const std::vector<std::string>& identities) const override {
    EXPECT_EQ(identities.size(), fabric_->members.size());
    for (size_t i = 0; i < identities.size(); ++i)
      EXPECT_EQ(identities[i], fabric_->members[i].identity);
    member_.on_meeting("fits");
    return member_.fits;
  }
  bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const override {
    if (kind == Kind::kBroadcast || kind == Kind::kAllGather) return true;
    return (op == ReduceOp::kSum || op == ReduceOp::kAverage) && type != at::kDouble;
  }

  std::string invitation() override {
    EXPECT_EQ(place_, 0u);
    member_.on_meeting("invitation");
    return kInvitation;
  }
  void begin_connecting(const std::string& invitation) override {
    EXPECT_EQ(invitation, kInvitation);
    start_something();
    member_.on_meeting("connecting");
    member_.connecting = true;
  }

  void begin(const DeviceOperation& work) override {
    start_something();
    number_ = member_.begun++;
    member_.on_begin(*number_);
    member_.order.push_back(description(work));
    work_ = work;
    // The device reads from now on.
    DeviceOperation snapshot = work;
    for (size_t i = 0; i < work.tensors.size(); ++i) {
      const bool is_read = work.kind != Kind::kAllGather || i == place_;
      if (is_read) snapshot.tensors[i] = work.tensors[i].clone();
    }
    fabric_->bring(*number_, place_, std::move(snapshot));
  }

  bool is_over() override {
    expect_own_thread();
    EXPECT_TRUE(busy_) << "nothing was begun";
    if (std::chrono::steady_clock::now() - since_ > 2 * kBound) {
      throw std::runtime_error("the test hangs");
    }
    if (number_) member_.on_poll(*number_);
    if (polls_ > 0) return --polls_, false;
    const bool over = number_ ? is_work_over() : is_connected();
    if (over) busy_ = false;
    return over;
  }

  void abort() noexcept override {
    expect_own_thread();
    member_.on_abort();
    ++member_.aborted;
    work_ = {};
  }

 private:
  static inline const std::string kInvitation{"from\0the first", 14};

  void start_something() {
    expect_own_thread();
    EXPECT_FALSE(busy_) << "what was begun last is not over";
    EXPECT_EQ(member_.aborted, 0u) << "begun after it was aborted";
    busy_ = true;
    polls_ = member_.polls;
    since_ = std::chrono::steady_clock::now();
  }
  void expect_own_thread() {
    if (thread_ == std::thread::id()) thread_ = std::this_thread::get_id();
    EXPECT_EQ(thread_, std::this_thread::get_id()) << "it is used by one thread";
  }
  static std::string description(const DeviceOperation& work) {
    std::string text = std::to_string(static_cast<int>(work.kind)) + ":";
    for (const at::Tensor& each : work.tensors) text += " " + std::to_string(each.numel());
    return text;
  }

  bool is_connected() const {
    for (const auto& each : fabric_->members) {
      if (!each.connecting) return false;
    }
    return true;
  }
  bool is_work_over() {
    if (fabric_->held || member_.hangs_at == number_) return false;
    const auto all = fabric_->brought(*number_);
    if (!all) return false;
    for (const auto& [place, work] : *all) EXPECT_EQ(work.kind, work_.kind) << "they disagree";
    for (size_t i = 0; i < work_.tensors.size(); ++i) write(*all, i);
    work_ = {};
    return true;
  }
  void write(const Fabric::Works& all, size_t i) {
    at::Tensor& tensor = work_.tensors[i];
    if (work_.kind == Kind::kBroadcast) {
      copy(tensor, all.at(work_.root).tensors.at(i));
    } else if (work_.kind == Kind::kAllGather) {
      if (i != place_) copy(tensor, all.at(i).tensors.at(i));
    } else if (work_.kind == Kind::kAllReduce || i == place_) {
      at::Tensor sum = all.at(0).tensors.at(i).clone();
      for (size_t from = 1; from < all.size(); ++from) sum += all.at(from).tensors.at(i);
      copy(tensor, work_.folding.scale == 1 ? sum : sum * work_.folding.scale);
    }
  }
  static void copy(at::Tensor& to, const at::Tensor& from) {
    EXPECT_EQ(to.scalar_type(), from.scalar_type());
    EXPECT_EQ(to.numel(), from.numel());
    EXPECT_TRUE(to.is_contiguous());
    to.copy_(from.view(to.sizes()));
  }

  const std::shared_ptr<Fabric> fabric_;
  const size_t place_;
  Fabric::Member& member_;
  std::thread::id thread_;

  bool busy_ = false;
  size_t polls_ = 0;
  std::chrono::steady_clock::time_point since_;
  std::optional<size_t> number_;  // none: it connects
  DeviceOperation work_;
};

inline std::unique_ptr<DeviceComm> Fabric::comm(int rank) {
  return std::make_unique<FakeComm>(shared_from_this(), static_cast<size_t>(rank));
}

}  // namespace weft::collective::test
