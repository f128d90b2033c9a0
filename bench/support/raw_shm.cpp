// SPDX-License-Identifier: BSD-3-Clause
#include "support/raw_shm.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <thread>

#include "support/program.h"
#include "support/raw_tcp.h"
#include "support/samples.h"
#include "support/system_error.h"

namespace bench {
namespace {

using Message = std::array<char, kPingSize>;

struct Side {
  alignas(128) std::atomic<uint64_t> sent;
  alignas(128) std::atomic<uint32_t> asleep;
  Message message;
};
struct Shared {
  Side to_server, to_caller;
  alignas(128) std::atomic<bool> polls, over;
};

// The two sleepers' descriptors and the memory, which the caller opens through /proc.
struct Descriptors {
  int memory, wakes_server, wakes_caller;
};

Shared& map(int memory) {
  void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  check_system(mapped == MAP_FAILED ? -1 : 0, "mmap");
  return *static_cast<Shared*>(mapped);
}

class Sleeper {
 public:
  explicit Sleeper(int event) : event_(event), epoll_(check_system(epoll_create1(0), "epoll")) {
    epoll_event wanted{EPOLLIN, {}};
    check_system(epoll_ctl(epoll_, EPOLL_CTL_ADD, event, &wanted), "epoll_ctl");
  }
  ~Sleeper() { close(epoll_); }
  void sleep(Side& from, uint64_t until) {
    from.asleep.store(1);
    while (from.sent.load() < until) {
      epoll_event got;
      if (epoll_wait(epoll_, &got, 1, 1000) <= 0) return;
      uint64_t count;
      check_system(static_cast<int>(read(event_, &count, sizeof count)), "read");
    }
    from.asleep.store(0);
  }

 private:
  int event_, epoll_;
};

void send(Side& to, uint64_t number, const Message& message, int wakes) {
  to.message = message;
  to.sent.store(number);
  if (to.asleep.exchange(0) == 0) return;
  const uint64_t one = 1;
  check_system(static_cast<int>(write(wakes, &one, sizeof one)), "write");
}

}  // namespace

void run_shm_server(const std::vector<std::string>&) {
  const Descriptors own{check_system(memfd_create("bench", 0), "memfd_create"),
                        check_system(eventfd(0, 0), "eventfd"),
                        check_system(eventfd(0, 0), "eventfd")};
  check_system(ftruncate(own.memory, sizeof(Shared)), "ftruncate");
  Shared& shared = map(own.memory);
  Sleeper sleeper(own.wakes_server);
  announce(std::to_string(getpid()) + " " + std::to_string(own.memory) + " " +
           std::to_string(own.wakes_server) + " " + std::to_string(own.wakes_caller));
  for (uint64_t number = 1;; ++number) {
    while (shared.to_server.sent.load(std::memory_order_acquire) < number) {
      if (shared.over) return;
      if (!shared.polls.load(std::memory_order_relaxed)) sleeper.sleep(shared.to_server, number);
    }
    const Message message = shared.to_server.message;
    send(shared.to_caller, number, message, own.wakes_caller);
  }
}

void run_shm_caller(const std::vector<std::string>& arguments) {
  std::istringstream said(arguments.at(0));
  std::string process;
  Descriptors theirs{};
  said >> process >> theirs.memory >> theirs.wakes_server >> theirs.wakes_caller;
  const auto open_theirs = [&process](int fd) {
    const std::string path = "/proc/" + process + "/fd/" + std::to_string(fd);
    return check_system(open(path.c_str(), O_RDWR), path.c_str());
  };
  // An eventfd cannot be opened by its name; the system call hands out a copy.
  const int server =
      check_system(static_cast<int>(syscall(SYS_pidfd_open, std::stoi(process), 0)), "pidfd");
  const auto copy_theirs = [server](int fd) {
    return check_system(static_cast<int>(syscall(SYS_pidfd_getfd, server, fd, 0)), "pidfd_getfd");
  };
  Shared& shared = map(open_theirs(theirs.memory));
  const int wakes_server = copy_theirs(theirs.wakes_server);
  const int wakes_caller = copy_theirs(theirs.wakes_caller);
  Sleeper sleeper(wakes_caller);
  uint64_t number = 0;
  const auto ping = [&](size_t count, bool polls) {
    shared.polls = polls;
    Message message{};
    const double median = median_microseconds(count, [&](size_t) {
      send(shared.to_server, ++number, message, wakes_server);
      while (shared.to_caller.sent.load(std::memory_order_acquire) < number) {
        if (!polls) sleeper.sleep(shared.to_caller, number);
      }
      message = shared.to_caller.message;
    });
    shared.polls = false;
    return median;
  };
  answer_commands({{"polling", [&](size_t n) { return ping(n, true); }},
                   {"sleeping", [&](size_t n) { return ping(n, false); }}});
  shared.over = true;
  const uint64_t one = 1;
  check_system(static_cast<int>(write(wakes_server, &one, sizeof one)), "write");
}

}  // namespace bench
