// SPDX-License-Identifier: BSD-3-Clause
#include "faults.h"

#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "process/descriptor.h"

namespace weft::soak {

namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (!pipe) return text;
  std::array<char, 4096> buffer;
  while (const size_t n = ::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  ::pclose(pipe);
  return text;
}

// "127.0.0.1:1234" of both ends, for every connection that a process of `workers` connected.
std::vector<std::pair<std::string, std::string>> connections_of(const std::vector<pid_t>& workers) {
  std::vector<std::pair<std::string, std::string>> found;
  const std::string list = output_of("ss -tnpH state established 2>/dev/null");
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find('\n', at), list.size());
    const std::string line = list.substr(at, end - at);
    at = end + 1;
    char local[128], peer[128];
    if (std::sscanf(line.c_str(), "%*s %*s %127s %127s", local, peer) != 2) continue;
    for (const pid_t pid : workers) {
      if (line.find(fmt::format("pid={},", pid)) != std::string::npos) {
        found.emplace_back(local, peer);
        break;
      }
    }
  }
  return found;
}

bool is_unix_stream(int socket) {
  int domain = 0, type = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX)
    return false;
  size = sizeof type;
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

// The Unix sockets by which `worker` reaches other workers, as descriptors of this process.
std::vector<process::Descriptor> neighbours_of(pid_t worker, const std::vector<pid_t>& workers) {
  std::vector<process::Descriptor> found;
  const process::Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  DIR* const folder = ::opendir(fmt::format("/proc/{}/fd", worker).c_str());
  if (!handle.is_open() || !folder) return found;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    const int number = std::atoi(entry->d_name);
    const long copy = ::syscall(SYS_pidfd_getfd, handle.get(), number, 0);
    process::Descriptor socket(static_cast<int>(copy));
    if (!socket.is_open() || !is_unix_stream(socket.get())) continue;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    if (peer.pid == worker || std::count(workers.begin(), workers.end(), peer.pid) == 0) continue;
    found.push_back(std::move(socket));
  }
  ::closedir(folder);
  return found;
}

}  // namespace

Faults::Faults(std::vector<pid_t> workers, pid_t self, unsigned seed)
    : workers_(std::move(workers)), self_(self), random_(seed) {}

void Faults::kill_a_connection() {
  if (random_() % 2 == 0) {
    kill_over_tcp();
  } else {
    kill_between_neighbours();
  }
}

void Faults::kill_over_tcp() {
  const auto connections = connections_of(workers_);
  if (connections.empty()) return;
  const auto& [local, peer] = connections[random_() % connections.size()];
  const std::string killed =
      output_of(fmt::format("ss -K -tnH src {} dst {} 2>/dev/null", local, peer));
  if (!killed.empty()) ++kills_;
}

// ss cannot kill Unix sockets.
void Faults::kill_between_neighbours() {
  const auto sockets = neighbours_of(workers_[random_() % workers_.size()], workers_);
  if (sockets.empty()) return;
  ::shutdown(sockets[random_() % sockets.size()].get(), SHUT_RDWR);
  ++kills_between_neighbours_;
}

void Faults::freeze_a_worker() {
  const pid_t victim = workers_[random_() % workers_.size()];
  if (victim == self_) return;
  ::kill(victim, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(100 + random_() % 3000));
  ::kill(victim, SIGCONT);
  ++freezes_;
}

}  // namespace weft::soak
