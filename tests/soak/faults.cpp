// SPDX-License-Identifier: BSD-3-Clause
#include "faults.h"

#include <signal.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

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

}  // namespace

Faults::Faults(std::vector<pid_t> workers, pid_t self, unsigned seed)
    : workers_(std::move(workers)), self_(self), random_(seed) {}

void Faults::kill_a_connection() {
  const auto connections = connections_of(workers_);
  if (connections.empty()) return;
  const auto& [local, peer] = connections[random_() % connections.size()];
  output_of(fmt::format("ss -K -tnH src {} dst {} 2>/dev/null", local, peer));
  ++kills_;
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
