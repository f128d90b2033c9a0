// SPDX-License-Identifier: BSD-3-Clause
#include "nursery.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace weft::neighbours {

namespace {

int own_reports = -1;

void check(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(std::string(what) + ": " + strerror(errno));
}

}  // namespace

Nursery::Nursery(Role role) {
  check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, commands_) == 0, "socketpair");
  check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, reports_) == 0, "socketpair");
  nurse_ = fork();
  check(nurse_ >= 0, "fork");
  if (nurse_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGCHLD, SIG_IGN);
  serve(role);
  _exit(0);
}

Nursery::~Nursery() {
  for (const int fd : {commands_[0], commands_[1], reports_[0], reports_[1]}) close(fd);
}

void Nursery::serve(Role role) {
  close(commands_[0]);
  std::array<char, 4096> line;
  for (ssize_t size; (size = recv(commands_[1], line.data(), line.size(), 0)) > 0;) {
    const pid_t process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGCHLD, SIG_DFL);
      own_reports = reports_[1];
      role(std::string(line.data(), static_cast<size_t>(size)));
      _exit(0);
    }
    check(send(commands_[1], &process, sizeof process, 0) == ssize_t{sizeof process}, "send");
  }
}

pid_t Nursery::start(const std::string& arguments) {
  pid_t process = -1;
  check(send(commands_[0], arguments.data(), arguments.size(), 0) > 0, "send");
  check(recv(commands_[0], &process, sizeof process, 0) == ssize_t{sizeof process}, "recv");
  check(process > 0, "fork");
  return process;
}

void Nursery::report(const std::string& line) {
  const std::string message = std::to_string(getpid()) + " " + line;
  check(send(own_reports, message.data(), message.size(), 0) > 0, "send");
}

std::optional<std::string> Nursery::heard(pid_t process, std::chrono::seconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!heard_.contains(process)) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd polled{reports_[0], POLLIN, 0};
    if (left.count() <= 0 || poll(&polled, 1, static_cast<int>(left.count())) <= 0) return {};
    std::array<char, 4096> line;
    const ssize_t size = recv(reports_[0], line.data(), line.size(), 0);
    check(size > 0, "recv");
    const std::string message(line.data(), static_cast<size_t>(size));
    heard_[std::stoi(message)] = message.substr(message.find(' ') + 1);
  }
  auto found = heard_.extract(process);
  return found.mapped();
}

}  // namespace weft::neighbours
