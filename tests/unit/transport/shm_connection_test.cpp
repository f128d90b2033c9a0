// What a connection through shared memory makes of a peer that breaks the rules, or dies. What it
// owes a peer that keeps them: tests/contract.
// SPDX-License-Identifier: BSD-3-Clause
#include "transport/shm/shm_connection.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/poller.h"

namespace weft::transport {
namespace {

using Status = IoResult::Status;
using testing::HasSubstr;

class ShmConnectionTest : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kLimit{20};

  ShmConnectionTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours = PrivateDescriptor(pair[0]);
    theirs = PrivateDescriptor(pair[1]);
  }

  // A peer that offers `descriptor`, or none, with a message of its own making.
  void offer(const std::string& message, int descriptor) {
    iovec piece{const_cast<char*>(message.data()), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (descriptor >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    ASSERT_EQ(sendmsg(theirs.get(), &header, 0), static_cast<ssize_t>(message.size()));
  }
  // The message of a peer that keeps the rules, and the memory with it.
  std::string true_offer(PrivateDescriptor& memory) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const PrivateDescriptor other(pair[1]);
    const auto honest = ShmConnection::offer(PrivateDescriptor(pair[0]), "somebody");
    std::string message(1000, 0);
    iovec piece{message.data(), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    message.resize(static_cast<size_t>(recvmsg(other.get(), &header, 0)));
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
    memory = PrivateDescriptor(fd);
    return message;
  }
  static size_t size_of(const PrivateDescriptor& memory) {
    return static_cast<size_t>(lseek(memory.get(), 0, SEEK_END));
  }

  IoResult first_receive() {
    const auto connection = ShmConnection::await(std::move(ours), "somebody");
    char byte;
    connection->wait(kReadable, kLimit);
    return connection->receive(&byte, 1);
  }

  PrivateDescriptor ours, theirs;
};

TEST_F(ShmConnectionTest, AnOfferThatKeepsTheRulesIsTaken) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  offer(message, memory.get());
  const auto connection = ShmConnection::await(std::move(ours), "somebody");
  char byte;

  // The peer that made this memory is gone again.
  EXPECT_EQ(connection->receive(&byte, 1).status, Status::kClosed);
  EXPECT_EQ(connection->receive(&byte, 1).why, "closed by peer");
}

TEST_F(ShmConnectionTest, APollerThatWaitsSinceBeforeTheMemoryWasThereIsTold) {
  const auto acceptor = ShmConnection::await(std::move(ours), "connector");
  Poller poller;
  poller.add(*acceptor, kReadable, 7);
  const auto connector = ShmConnection::offer(std::move(theirs), "acceptor");
  char byte = 0;
  ASSERT_EQ(acceptor->receive(&byte, 1).status, Status::kWouldBlock);  // has the memory now

  const iovec piece{const_cast<char*>("x"), 1};
  ASSERT_EQ(connector->send(&piece, 1).bytes, 1u);

  ASSERT_EQ(poller.wait(kLimit).size(), 1u);
  EXPECT_EQ(acceptor->receive(&byte, 1).bytes, 1u);
  poller.remove(*acceptor, 7);
}

TEST_F(ShmConnectionTest, AMessageThatIsNoOfferIsRefused) {
  offer("GET / HTTP/1.1\r\n\r\n", -1);
  const IoResult got = first_receive();
  EXPECT_EQ(got.status, Status::kClosed);
  EXPECT_THAT(got.why, HasSubstr("offered no shared memory"));
}

TEST_F(ShmConnectionTest, AnOfferWithoutMemoryIsRefused) {
  PrivateDescriptor memory;
  offer(true_offer(memory), -1);
  EXPECT_THAT(first_receive().why, HasSubstr("offered no shared memory"));
}

TEST_F(ShmConnectionTest, FurtherDescriptorsOfAnOfferAreClosed) {
  PrivateDescriptor memory;
  std::string message = true_offer(memory);
  const auto connection = ShmConnection::await(std::move(ours), "somebody");
  const auto open_descriptors = [] {
    size_t count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const size_t before = open_descriptors();
  iovec piece{message.data(), message.size()};
  const int two[] = {memory.get(), memory.get()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof two)] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof two);
  std::memcpy(CMSG_DATA(rights), two, sizeof two);
  ASSERT_GT(sendmsg(theirs.get(), &header, 0), 0);
  char byte;

  EXPECT_THAT(connection->receive(&byte, 1).why, HasSubstr("offered no shared memory"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ShmConnectionTest, MemoryThatThePeerCouldTakeAwayIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const PrivateDescriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), static_cast<off_t>(size_of(memory))), 0);
  offer(message, loose.get());
  EXPECT_THAT(first_receive().why, HasSubstr("could take away"));
}

TEST_F(ShmConnectionTest, ADescriptorThatIsNoMemoryIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const PrivateDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  offer(message, null.get());
  EXPECT_THAT(first_receive().why, HasSubstr("could take away"));
}

TEST_F(ShmConnectionTest, MemoryOfAnotherSizeIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const PrivateDescriptor small(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  offer(message, small.get());
  EXPECT_THAT(first_receive().why, HasSubstr("4096 bytes in place of"));
}

TEST_F(ShmConnectionTest, MemoryThatIsNotTheSameIsFoundOut) {
  PrivateDescriptor memory, other;
  const std::string message = true_offer(memory);
  true_offer(other);
  offer(message, other.get());
  EXPECT_THAT(first_receive().why, HasSubstr("not shared"));
}

TEST_F(ShmConnectionTest, APeerThatLeavesBeforeItsOfferIsNoticed) {
  theirs = {};
  const IoResult got = first_receive();
  EXPECT_EQ(got.status, Status::kClosed);
  EXPECT_EQ(got.why, "closed by peer");
}

TEST_F(ShmConnectionTest, APeerThatTruncatesTheMemoryCannot) {
  PrivateDescriptor memory;
  true_offer(memory);
  EXPECT_NE(ftruncate(memory.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
}

// Whatever stands in the memory, calls end, and end with one of their results.
TEST_F(ShmConnectionTest, APeerThatScribblesOverTheMemoryHurtsNobody) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const size_t bytes = size_of(memory);
  auto* scribbled = static_cast<unsigned char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
  ASSERT_NE(static_cast<void*>(scribbled), MAP_FAILED);
  offer(message, memory.get());
  const auto connection = ShmConnection::await(std::move(ours), "somebody");
  std::atomic<bool> over{false};
  std::thread neighbour([&] {
    uint64_t random = 1;
    while (!over) {
      random = random * 6364136223846793005 + 1442695040888963407;
      // Mostly where the counters are.
      scribbled[(random >> 40) % (random & 1 ? 4096 : bytes)] =
          static_cast<unsigned char>(random >> 32);
    }
  });
  std::string text(3000, 'x');
  const iovec piece{text.data(), text.size()};
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_LE(connection->send(&piece, 1).bytes, text.size());
    ASSERT_LE(connection->receive(text.data(), text.size()).bytes, text.size());
    connection->wait(kReadable | kWritable, std::chrono::microseconds(1));
  }
  over = true;
  neighbour.join();
  connection->close_both_ways();
  munmap(scribbled, bytes);
}

TEST_F(ShmConnectionTest, ADeadProcessEndsAWaitAndWhatItSentIsRead) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(pair[0]);
    const auto connection = ShmConnection::offer(PrivateDescriptor(pair[1]), "parent");
    const iovec piece{const_cast<char*>("last words"), 10};
    connection->send(&piece, 1);
    pause();
    _exit(0);
  }
  close(pair[1]);
  const auto connection = ShmConnection::await(PrivateDescriptor(pair[0]), "child");
  char heard[11] = {};
  ASSERT_TRUE(connection->wait(kReadable, kLimit).readable);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);

  EXPECT_EQ(connection->receive(heard, 10).bytes, 10u);
  EXPECT_STREQ(heard, "last words");
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(connection->wait(kReadable, kLimit).hung_up);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(connection->receive(heard, 10).status, Status::kClosed);
}

}  // namespace
}  // namespace weft::transport
