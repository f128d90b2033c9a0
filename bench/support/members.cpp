// SPDX-License-Identifier: BSD-3-Clause
#include "support/members.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "support/system_error.h"

namespace bench {

Members Members::of_role(const std::string& role, size_t count) {
  Members members;
  members.start(role_command(role, {}), count);
  return members;
}

Members Members::of_program(std::vector<std::string> command, size_t count) {
  Members members;
  members.start(std::move(command), count);
  return members;
}

void Members::start(std::vector<std::string> command, size_t count) {
  command.push_back(std::to_string(count));
  command.push_back("file://" + directory_->path() + "/rendezvous");
  first_ = std::make_unique<Child>(ChildOptions{command, {{"GLOG_minloglevel", "2"}}, {}});
  if (const std::string line = first_->read_line(); line != "ready")
    throw std::runtime_error("the group said '" + line + "' instead of 'ready'");
}

Measurement Members::measuring(const std::string& what, size_t count) {
  return [this, what, count] { return first_->measure(what, count); };
}

void run_members(const std::vector<std::string>& arguments, const BeMember& be_member) {
  const size_t members = std::stoul(arguments.at(0));
  std::vector<pid_t> others;
  for (size_t rank = 1; rank < members; ++rank) {
    const pid_t pid = check_system(fork(), "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int code = 0;
      try {
        be_member(rank, members, arguments.at(1));
      } catch (const std::exception& error) {
        std::cerr << "member " << rank << ": " << error.what() << std::endl;
        code = 1;
      }
      _exit(code);
    }
    others.push_back(pid);
  }
  be_member(0, members, arguments.at(1));
  for (const pid_t pid : others) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace bench
