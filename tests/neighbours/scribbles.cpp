// A neighbour that writes anything anywhere into all memory that it shares, and tries to cut it
// off, while calls go both ways.
// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/temporary_directory.h"
#include "campaigns.h"
#include "exchange.h"

namespace weft::neighbours {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr size_t kMostBytes = size_t{4} << 20;
constexpr int kThreads = 3;
constexpr auto kRound = 2s;

// --- the hostile one -------------------------------------------------------------------------

// Shared memory, mapped a second time: the connection that it belongs to may close at any moment,
// and something else would lie at its address.
class Range {
 public:
  explicit Range(const std::string& file) : fd_(open(file.c_str(), O_RDWR | O_CLOEXEC)) {
    struct stat status {};
    if (fd_ < 0 || fstat(fd_, &status) != 0) return;
    number_ = status.st_ino;
    bytes_ = std::min(static_cast<size_t>(status.st_size), size_t{64} << 20);
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped != MAP_FAILED) begin_ = static_cast<std::byte*>(mapped);
  }
  ~Range() {
    if (begin_) munmap(begin_, bytes_);
    if (fd_ >= 0) close(fd_);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  bool is_there() const { return begin_; }
  int descriptor() const { return fd_; }
  ino_t number() const { return number_; }
  size_t bytes() const { return bytes_; }
  uint64_t& word(size_t offset) const { return *reinterpret_cast<uint64_t*>(begin_ + offset); }

 private:
  const int fd_;
  ino_t number_ = 0;
  size_t bytes_ = 0;
  std::byte* begin_ = nullptr;
};

// What this process shares with the other: rings, its arena and that of the other. Needs root, for
// /proc/self/map_files.
class Ranges {
 public:
  void look_for_new() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:weft") == std::string::npos) continue;
      const std::string addresses = line.substr(0, line.find(' '));
      auto range = std::make_unique<Range>("/proc/self/map_files/" + addresses);
      if (range->is_there() && !knows(range->number())) all_.push_back(std::move(range));
    }
    while (all_.size() > kMost) all_.pop_front();
  }
  bool empty() const { return all_.empty(); }
  const Range& pick(std::mt19937_64& random) const { return *all_[random() % all_.size()]; }

 private:
  static constexpr size_t kMost = 32;
  bool knows(ino_t number) const {
    return std::any_of(all_.begin(), all_.end(),
                       [number](const auto& each) { return each->number() == number; });
  }
  std::deque<std::unique_ptr<Range>> all_;
};

// Headers and indices, more often than what lies behind them.
size_t some_offset(std::mt19937_64& random, size_t bytes) {
  switch (random() % 4) {
    case 0:
      return random() % bytes;
    case 1:
      return random() % std::min<size_t>(bytes, 512 * 1024);
    case 2:
      return random() % std::min<size_t>(bytes, 8192);
    default:
      return random() % 12 * 128;  // where counters of rings are
  }
}

uint64_t some_value(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return random() % 8;
    default:
      return random() >> (random() % 64);
  }
}

void scribble(std::mt19937_64& random, const Range& range) {
  constexpr size_t kArenaMagic = 8;  // without it nobody uses the arena any more
  const size_t offset = some_offset(random, range.bytes()) & ~size_t{7};
  if (offset < kArenaMagic && random() % 100 != 0) return;
  std::atomic_ref<uint64_t> word(range.word(offset));
  if (random() % 3 == 0) {  // as if by accident: one bit
    word.fetch_xor(uint64_t{1} << (random() % 64));
  } else {
    word = some_value(random);
  }
}

// What the other has mapped must not go away under it: that would be a SIGBUS.
void try_to_truncate(std::mt19937_64& random, const Range& range) {
  [[maybe_unused]] int ignored = ftruncate(range.descriptor(), static_cast<off_t>(random() % 4096));
  ignored = fallocate(range.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
}

void scribble_for_ever(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (Ranges ranges;;) {
    ranges.look_for_new();
    for (int i = 0; i < 10 && !ranges.empty(); ++i) {
      const Range& range = ranges.pick(random);
      for (uint64_t k = random() % 16; k > 0; --k) scribble(random, range);
      if (random() % 200 == 0) try_to_truncate(random, range);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    }
  }
}

// --- the honest one --------------------------------------------------------------------------

bool run_round(Nursery& nursery, uint64_t seed, Tally& tally) {
  const base::TemporaryDirectory directory("weft-scribbles");
  const std::string file = directory.path() + "/group";
  const pid_t hostile = nursery.start(fmt::format("scribbles {} {}", file, seed));
  {
    const std::unique_ptr<Agent> agent = join(file, 0, 2);
    const auto until = Clock::now() + kRound;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        while (Clock::now() < until) {
          if (!exchange(*agent, "w1", random, kMostBytes, tally)) std::this_thread::sleep_for(1ms);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    kill(hostile, SIGKILL);
    agent->shutdown_now();
  }
  return tally.strange == 0 && tally.too_late == 0 && arena_is_empty();
}

}  // namespace

void run_scribbler(const std::string& arguments) {
  std::istringstream in(arguments);
  std::string campaign, file;
  uint64_t seed = 0;
  in >> campaign >> file >> seed;
  const std::unique_ptr<Agent> agent = join(file, 1, 2);
  std::thread calls([&] {
    Tally tally;
    std::mt19937_64 random(seed + 100);
    for (;;) exchange(*agent, "w0", random, kMostBytes, tally);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(seed % 50));
  scribble_for_ever(seed);
}

bool run_scribbles(Nursery& nursery, uint64_t seconds, uint64_t seed) {
  Tally tally;
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  uint64_t rounds = 0;
  while (Clock::now() < until) {
    if (!run_round(nursery, seed + rounds, tally)) {
      fmt::print("seed {}: {}\n", seed + rounds, text(tally));
      return false;
    }
    if (++rounds % 10 == 0) {
      fmt::print("{} hostile neighbours: {}\n", rounds, text(tally));
      fflush(stdout);
    }
  }
  fmt::print("{} hostile neighbours: {}\n", rounds, text(tally));
  // Bytes may be garbage, but neither all calls can have failed nor none.
  return tally.right > 0 && tally.failed > 0;
}

}  // namespace weft::neighbours
