// A real process under test: what it prints, how it ends and whether anything of it is left.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "process/descriptor.h"
#include "support/sanitizers.h"

namespace weft::test {

// Catches a hang; whatever takes longer than usual on a loaded machine is no failure.
constexpr std::chrono::seconds kBound{100};

// True as soon as `condition` holds; false after kBound.
inline bool holds_in_time(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kBound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

class TestDirectory {
 public:
  std::string path() const { return directory_.path(); }
  std::string operator/(const std::string& name) const { return path() + "/" + name; }

 private:
  base::TemporaryDirectory directory_{"launch_test"};
};

// Starts with default signal actions and without the variables that describe a worker. Every
// descendant holds a pipe of the test open, by which the test sees when the last one is gone.
class LaunchedProgram {
 public:
  using Environment = std::map<std::string, std::string>;

  LaunchedProgram(const std::vector<std::string>& command, const Environment& environment = {})
      : LaunchedProgram(
            [command] {
              std::vector<char*> arguments;
              for (const std::string& argument : command)
                arguments.push_back(const_cast<char*>(argument.c_str()));
              arguments.push_back(nullptr);
              ::execv(arguments[0], arguments.data());
              return 99;
            },
            environment) {}

  // Runs `body` in a forked process.
  LaunchedProgram(const std::function<int()>& body, const Environment& environment = {}) {
    process::Pipe input = process::open_pipe(), output = process::open_pipe(),
                  error = process::open_pipe();
    process::Pipe alive = process::open_pipe();
    pid_ = ::fork();
    if (pid_ < 0) process::throw_errno("fork");
    if (pid_ == 0) {
      ::dup2(input.read_end.get(), STDIN_FILENO);
      ::dup2(output.write_end.get(), STDOUT_FILENO);
      ::dup2(error.write_end.get(), STDERR_FILENO);
      ::fcntl(alive.write_end.get(), F_SETFD, 0);
      restore_defaults(environment);
      ::_exit(body());
    }
    input_ = std::move(input.write_end);
    streams_[0].pipe = std::move(output.read_end);
    streams_[1].pipe = std::move(error.read_end);
    alive_ = std::move(alive.read_end);
  }

  ~LaunchedProgram() {
    if (status_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void signal(int signal) const { ASSERT_EQ(::kill(pid_, signal), 0); }
  void write_input(const std::string& text) const {
    ASSERT_EQ(::write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_input() { input_.close(); }
  void close_output() { streams_[0].pipe.close(); }

  const std::string& output() const { return streams_[0].text; }
  const std::string& error() const { return streams_[1].text; }

  // Reads until `text` has been printed on standard output `times` times.
  bool prints(const std::string& text, size_t times = 1) {
    return read_until([&] {
      size_t found = 0;
      for (size_t at = 0; (at = output().find(text, at)) != std::string::npos; at += text.size())
        ++found;
      return found >= times;
    });
  }

  // Reads to the end of its output. -1 if that does not come in time.
  int exit_code() {
    if (!read_until([this] { return !streams_[0].pipe.is_open() && !streams_[1].pipe.is_open(); }))
      return -1;
    int status = 0;
    if (!holds_in_time([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    status_ = status;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  bool every_descendant_ends() const {
    pollfd polled{alive_.get(), POLLIN, 0};
    return ::poll(&polled, 1, std::chrono::milliseconds(kBound).count()) == 1;
  }

 private:
  struct Stream {
    process::Descriptor pipe;
    std::string text;
  };

  static void restore_defaults(const Environment& environment) {
    for (int signal = 1; signal < 32; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                             "WEFT_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  }

  bool read_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kBound;
    while (!condition()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd polled[2] = {{streams_[0].pipe.get(), POLLIN, 0}, {streams_[1].pipe.get(), POLLIN, 0}};
      if (left.count() <= 0 || ::poll(polled, 2, static_cast<int>(left.count())) <= 0)
        return condition();
      for (size_t i = 0; i < 2; ++i) {
        if (polled[i].revents != 0) read_part(streams_[i]);
      }
      if (!streams_[0].pipe.is_open() && !streams_[1].pipe.is_open()) return condition();
    }
    return true;
  }

  static void read_part(Stream& stream) {
    char buffer[65536];
    const ssize_t size = ::read(stream.pipe.get(), buffer, sizeof buffer);
    if (size <= 0) return stream.pipe.close();
    stream.text.append(buffer, static_cast<size_t>(size));
  }

  pid_t pid_ = -1;
  std::optional<int> status_;
  process::Descriptor input_;
  process::Descriptor alive_;
  Stream streams_[2];
};

}  // namespace weft::test
