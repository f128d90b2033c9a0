// Workers with different networks, as on two hosts.
// SPDX-License-Identifier: BSD-3-Clause
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include <gtest/gtest.h>
#include <weft/rpc.h>

#include "rendezvous/member_record.h"
#include "support/scenario.h"
#include "transport/private_descriptor.h"

namespace weft::two_hosts {

using test::Workers;

// Gives this process a network of its own, in which the loopback interface is up.
bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const transport::PrivateDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback = {};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  return ioctl(socket.get(), SIOCSIFFLAGS, &loopback) == 0;
}

bool may_enter_own_network() {
  const pid_t child = fork();
  if (child == 0) _exit(enter_own_network() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool names_what_to_set(const Error& error) {
  std::cerr << error.what() << "\n";
  return error.code() == ErrorCode::kInvalidArgument &&
         error.message().find("WEFT_ADDRESS") != std::string::npos &&
         error.message().find("listens on 127.0.0.1:") != std::string::npos;
}

SCENARIO(two_hosts_without_addresses) {
  if (rank == 1) REQUIRE_THAT(enter_own_network());
  try {
    init_rpc("worker" + std::to_string(rank));
  } catch (const Error& error) {
    REQUIRE_THAT(names_what_to_set(error));
    return 0;
  }
  REQUIRE_THAT(!"joining fails");
  return 1;
}

TEST(TwoHosts, WithoutAnAddressThatTheOthersReachJoiningFails) {
  if (may_enter_own_network()) {
    Workers workers("two_hosts_without_addresses", 2, {{"WEFT_ADDRESS", "127.0.0.1"}});
    EXPECT_TRUE(workers.all_succeed());
    return;
  }
  std::cerr << "no network namespaces here; only the check of the records is tested\n";
  const rendezvous::MemberRecord here{"a", "127.0.0.1:1", 1, 1, 2, "here"};
  const rendezvous::MemberRecord there{"b", "127.0.0.1:2", 2, 2, 2, "there"};
  try {
    rendezvous::check_compatible(here, 0, there, 1);
    FAIL() << "they form a group";
  } catch (const Error& error) {
    EXPECT_TRUE(names_what_to_set(error));
  }
}

}  // namespace weft::two_hosts
