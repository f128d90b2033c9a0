// A process that has as many descriptors as its soft limit allows.
// SPDX-License-Identifier: BSD-3-Clause
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "transport/tcp/tcp_transport.h"
#include "weft/error.h"

namespace weft::transport {
namespace {

class DescriptorLimit : public testing::Test {
 protected:
  DescriptorLimit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimit() override { setrlimit(RLIMIT_NOFILE, &before_); }

  // The next descriptor that is opened is the last but `more`.
  void leave(rlim_t more) const {
    const int next = dup(0);
    close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next) + more;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  rlimit before_{};
};

TEST_F(DescriptorLimit, IsRaisedForConnectionsWhereTheSystemAllowsIt) {
  const auto transport = make_tcp_transport();
  const auto listener = transport->listen("127.0.0.1:0");
  leave(4);

  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 20; ++i) {
    connections.push_back(transport->connect(listener->address()));
    auto accepted = listener->accept();
    while (accepted.status == Listener::Accepted::Status::kNone) accepted = listener->accept();
    ASSERT_EQ(accepted.status, Listener::Accepted::Status::kConnection) << accepted.why;
    connections.push_back(std::move(accepted.connection));
  }

  EXPECT_EQ(connections.size(), 40u);
}

TEST_F(DescriptorLimit, IsNamedInTheErrorWhereItCannotBeRaised) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto transport = make_tcp_transport();
  const auto listener = transport->listen("127.0.0.1:0");
  // The hard limit can be lowered, but only root could raise it again: a child has it lowered.
  const auto all_taken = [&] {
    leave(4);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_max = limit.rlim_cur;
    setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<std::unique_ptr<Connection>> connections;
    try {
      for (int i = 0; i < 20; ++i) connections.push_back(transport->connect(listener->address()));
    } catch (const Error& error) {
      const bool named = error.message().find("descriptors") != std::string::npos &&
                         error.message().find("ulimit") != std::string::npos;
      _exit(named && error.code() == ErrorCode::kUnavailable ? 0 : 1);
    }
    _exit(2);
  };
  EXPECT_EXIT(all_taken(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::transport
