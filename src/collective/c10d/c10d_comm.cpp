// SPDX-License-Identifier: BSD-3-Clause
#include "collective/c10d/c10d_comm.h"

#include <limits>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/mutex.h"
#include "rpc/functions/describe_exception.h"
#include "weft/error.h"

namespace weft::collective {

namespace {

std::string backend_of(const c10d::ProcessGroup& group) {
  try {
    return group.getBackendName();
  } catch (const std::exception&) {
    return "unnamed";  // a group of the program's own
  }
}

// "gloo: 1 of 4"
std::string description_of(const c10d::ProcessGroup& group, int rank) {
  return fmt::format("{}: {} of {}", backend_of(group), rank, group.getSize());
}

c10d::ReduceOp reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

// MPI counts elements in an int.
constexpr int64_t kMostAtOnce = std::numeric_limits<int>::max();

// What a backend of c10d's does, as far as it is known.
class Abilities {
 public:
  explicit Abilities(std::string backend) : backend_(std::move(backend)) {}

  bool take(Kind kind, ReduceOp op, c10::ScalarType type) const {
    if (kind != Kind::kAllReduce && kind != Kind::kBroadcast) return false;
    if (!moves(type)) return false;
    // The backends differ in what the minimum of a number and NaN is.
    const bool compares = op == ReduceOp::kMin || op == ReduceOp::kMax;
    return kind == Kind::kBroadcast || !compares || c10::isIntegralType(type, false);
  }

 private:
  bool moves(c10::ScalarType type) const {
    switch (type) {
      case c10::ScalarType::Float:
      case c10::ScalarType::Double:
      case c10::ScalarType::Int:
      case c10::ScalarType::Long:
        return true;
      case c10::ScalarType::Half:
      case c10::ScalarType::Char:
      case c10::ScalarType::Byte:
        return backend_ == "gloo";
      default:
        return false;
    }
  }

  const std::string backend_;
};

// What c10d still works on although Weft has given it up. A group waits in its destructor for its
// operations, which may take for ever, and they write into the memory they were given: so neither
// is ever destroyed.
class GivenUp {
 public:
  struct Entry {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    c10::intrusive_ptr<c10d::Work> pending;
    at::Tensor memory;
  };

  static void keep(Entry entry) {
    static GivenUp& all = *new GivenUp;
    const base::MutexLock lock(all.mutex_);
    all.entries_.push_back(std::move(entry));
  }

 private:
  base::Mutex mutex_;
  std::vector<Entry> entries_ WEFT_GUARDED_BY(mutex_);
};

// A group cannot be stopped in the middle of an operation, and the tensors are the program's as
// soon as Weft's operation is over. So the group works on a copy.
class C10dComm final : public DeviceComm {
 public:
  explicit C10dComm(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)), backend_(backend_of(*group_)), abilities_(backend_) {}
  ~C10dComm() override { abort(); }

  // The members have compared their groups when they met.
  std::string identity() override { return "c10d"; }
  bool fits(const std::vector<std::string>&) const override { return true; }
  std::string invitation() override { return {}; }
  void begin_connecting(const std::string&) override {}

  bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const override {
    return abilities_.take(kind, op, type);
  }

  void begin(const DeviceOperation& work) override {
    if (!group_) throw Error(ErrorCode::kUnavailable, backend_ + ": the group was given up");
    operation_ = work;
    copy_ = at::cat(work.tensors);
    if (copy_.numel() == 0) return;
    if (copy_.numel() > kMostAtOnce) {
      throw Error(ErrorCode::kLimitExceeded, fmt::format("{}: {} elements at once, at most {}",
                                                         backend_, copy_.numel(), kMostAtOnce));
    }
    with_errors_of_backend([&] { pending_ = hand_over(work); });
  }

  bool is_over() override {
    if (!operation_) return true;
    if (pending_ && !pending_->isCompleted()) return false;
    if (pending_) with_errors_of_backend([&] { pending_->wait(); });
    pending_.reset();
    bring_back();
    return true;
  }

  void abort() noexcept override {
    operation_.reset();
    if (pending_ && !is_completed()) {
      GivenUp::keep({std::move(group_), std::move(pending_), std::move(copy_)});
    }
    pending_.reset();
    copy_.reset();
    group_.reset();
  }

 private:
  bool is_completed() noexcept {
    try {
      return pending_->isCompleted();
    } catch (const std::exception&) {
      return false;  // nobody knows
    }
  }

  c10::intrusive_ptr<c10d::Work> hand_over(const DeviceOperation& work) {
    std::vector<at::Tensor> tensors{copy_};
    if (work.kind == Kind::kAllReduce) {
      c10d::AllreduceOptions options;
      options.reduceOp = reduction(work.folding.op);
      return group_->allreduce(tensors, options);
    }
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int64_t>(work.root);
    return group_->broadcast(tensors, options);
  }

  template <typename F>
  void with_errors_of_backend(const F& f) {
    try {
      f();
    } catch (const std::exception&) {
      throw Error(
          ErrorCode::kUnavailable,
          fmt::format("{}: {}", backend_, rpc::describe_exception(std::current_exception())));
    }
  }

  void bring_back() {
    if (operation_->folding.scale != 1) copy_.mul_(operation_->folding.scale);
    int64_t at = 0;
    for (at::Tensor& tensor : operation_->tensors) {
      tensor.copy_(copy_.narrow(0, at, tensor.numel()));
      at += tensor.numel();
    }
    operation_.reset();
    copy_.reset();
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::string backend_;
  const Abilities abilities_;
  // The operation that was begun last, until it is over.
  std::optional<DeviceOperation> operation_;
  at::Tensor copy_;
  c10::intrusive_ptr<c10d::Work> pending_;
};

}  // namespace

Carrier c10d_carrier(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (!group) throw Error(ErrorCode::kInvalidArgument, "wrap_group of no c10d group");
  if (backend_of(*group) == "nccl") {
    throw Error(ErrorCode::kInvalidArgument,
                "wrap_group of a c10d group over NCCL, which moves no CPU tensors; every group of "
                "Weft's uses NCCL itself for tensors on GPUs (GroupOptions::nccl)");
  }
  Carrier carrier{description_of(*group, group->getRank()), {}, [group] {
                    return std::make_unique<C10dComm>(group);
                  }};
  for (int rank = 0; rank < group->getSize(); ++rank)
    carrier.of_members.push_back(description_of(*group, rank));
  return carrier;
}

}  // namespace weft::collective
