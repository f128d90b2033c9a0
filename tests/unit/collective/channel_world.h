// Channels of all members of a group in one thread: messages, tasks and time belong to the test.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collective/channels/channel.h"

namespace weft::collective::test {

inline constexpr auto kTimeout = std::chrono::seconds(30);

/// What was sent, on its way. The tensors are those of the sender: what they are when the chunk is
/// delivered is what the receiver gets.
struct Packet {
  int from = 0, to = 0;
  Chunk chunk;
  std::function<void()> arrived;
};

class World {
 public:
  explicit World(size_t size, uint64_t seed = 0) : random(seed) {
    for (size_t i = 0; i < size; ++i) {
      const int rank = static_cast<int>(i);
      channels.push_back(std::make_shared<Channel>(ChannelId{7, 0}, rank, static_cast<int>(size),
                                                   kTimeout, std::make_shared<Fake>(*this, rank)));
    }
  }
  // What is left of the operations refers to the channels, which have them.
  ~World() {
    for (const auto& channel : channels) channel->fail(Error(ErrorCode::kCancelled, "it is over"));
  }

  size_t size() const { return channels.size(); }
  Channel& operator[](size_t rank) { return *channels[rank]; }
  bool quiet() const { return packets.empty() && tasks.empty(); }
  size_t pick(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random); }
  bool one_in(size_t n) { return pick(n) == 0; }

  /// Some packet is delivered, or some task runs.
  void step() {
    const size_t which = pick(packets.size() + tasks.size());
    if (which < tasks.size()) {
      take(tasks, which)();
    } else {
      deliver(which - tasks.size());
    }
  }
  /// Some task runs.
  void run_task() { take(tasks, pick(tasks.size()))(); }
  void run() {
    while (!quiet()) step();
  }

  void deliver(size_t index) {
    Packet packet = take(packets, index);
    Chunk chunk = packet.chunk;
    for (at::Tensor& tensor : chunk.tensors) tensor = tensor.clone();
    const int from = packet.from;
    const auto to = static_cast<size_t>(packet.to);
    // Its answer may be lost: then it is sent again, until one is heard.
    if (one_in(repeat_one_in)) {
      packets.push_back(std::move(packet));
    } else if (packet.arrived) {
      tasks.push_back(std::move(packet.arrived));
    }
    packet = {};
    channels[to]->on_chunk(from, std::move(chunk));
  }

  base::ManualClock clock;
  std::mt19937_64 random;
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Packet> packets;
  std::vector<std::function<void()>> tasks;
  size_t repeat_one_in = 8;
  size_t watched = 0;
  std::function<void()> on_send = [] {};

 private:
  class Fake final : public Channel::Outside {
   public:
    Fake(World& world, int rank) : world_(world), rank_(rank) {}
    base::Time now() const override { return world_.clock.now(); }
    void send(int to, const Chunk& chunk, bool, std::function<void()> arrived) override {
      world_.on_send();
      world_.packets.push_back({rank_, to, chunk, std::move(arrived)});
    }
    void later(std::function<void()> task) override { world_.tasks.push_back(std::move(task)); }
    void tell_failed(const Error& error) override {
      for (const auto& channel : world_.channels) {
        if (channel->rank() == rank_) continue;
        world_.tasks.push_back([channel, error] { channel->fail(error); });
      }
    }
    void watch() override { ++world_.watched; }
    std::string name(int rank) const override { return "m" + std::to_string(rank); }
    std::string group_name() const override { return "group [test]"; }

   private:
    World& world_;
    const int rank_;
  };

  template <typename T>
  static T take(std::vector<T>& from, size_t index) {
    std::swap(from[index], from.back());
    T taken = std::move(from.back());
    from.pop_back();
    return taken;
  }
};

}  // namespace weft::collective::test
