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
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    lane[0] = PrivateDescriptor(pair[0]);
    lane[1] = PrivateDescriptor(pair[1]);
  }

  // A peer that sends a message of its own making with these descriptors.
  static void send_with(int socket, const std::string& message,
                        const std::vector<int>& descriptors) {
    iovec piece{const_cast<char*>(message.data()), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    const size_t bytes = descriptors.size() * sizeof(int);
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (bytes > 0) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
    }
    ASSERT_EQ(sendmsg(socket, &header, 0), static_cast<ssize_t>(message.size()));
  }
  // An offer of this memory, with a lane for descriptors.
  void offer(const std::string& message, int memory) {
    send_with(theirs.get(), message, {memory, lane[1].get()});
  }
  // The message of a peer that keeps the rules, and the memory with it.
  std::string true_offer(PrivateDescriptor& memory) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const PrivateDescriptor other(pair[1]);
    const auto honest = ShmConnection::offer(PrivateDescriptor(pair[0]), "somebody", 0);
    std::string message(1000, 0);
    iovec piece{message.data(), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    message.resize(static_cast<size_t>(recvmsg(other.get(), &header, 0)));
    int descriptors[2] = {-1, -1};
    std::memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptors);
    memory = PrivateDescriptor(descriptors[0]);
    close(descriptors[1]);
    return message;
  }
  static size_t size_of(const PrivateDescriptor& memory) {
    return static_cast<size_t>(lseek(memory.get(), 0, SEEK_END));
  }

  // Has taken the memory of a peer that keeps the rules.
  std::unique_ptr<ShmConnection> connection_with_lane() {
    PrivateDescriptor memory;
    const std::string message = true_offer(memory);
    offer(message, memory.get());
    auto connection = ShmConnection::await(std::move(ours), "somebody", 0);
    char byte;
    connection->receive(&byte, 1);
    return connection;
  }

  IoResult first_receive() {
    const auto connection = ShmConnection::await(std::move(ours), "somebody", 0);
    char byte;
    connection->wait(kReadable, kLimit);
    return connection->receive(&byte, 1);
  }

  static size_t open_descriptors() {
    size_t count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  }

  PrivateDescriptor ours, theirs;
  PrivateDescriptor lane[2];
};

TEST_F(ShmConnectionTest, AnOfferThatKeepsTheRulesIsTaken) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  offer(message, memory.get());
  const auto connection = ShmConnection::await(std::move(ours), "somebody", 0);
  char byte;

  // The peer that made this memory is gone again.
  EXPECT_EQ(connection->receive(&byte, 1).status, Status::kClosed);
  EXPECT_EQ(connection->receive(&byte, 1).why, "closed by peer");
}

TEST_F(ShmConnectionTest, APollerThatWaitsSinceBeforeTheMemoryWasThereIsTold) {
  const auto acceptor = ShmConnection::await(std::move(ours), "connector", 0);
  Poller poller;
  poller.add(*acceptor, kReadable, 7);
  const auto connector = ShmConnection::offer(std::move(theirs), "acceptor", 0);
  char byte = 0;
  ASSERT_EQ(acceptor->receive(&byte, 1).status, Status::kWouldBlock);  // has the memory now

  const iovec piece{const_cast<char*>("x"), 1};
  ASSERT_EQ(connector->send(&piece, 1).bytes, 1u);

  ASSERT_EQ(poller.wait(kLimit).size(), 1u);
  EXPECT_EQ(acceptor->receive(&byte, 1).bytes, 1u);
  poller.remove(*acceptor, 7);
}

// A caller reads while a poller is about to sleep: bytes that the poller saw and the caller took
// leave the poller with a request.
TEST_F(ShmConnectionTest, APollerWakesAlsoIfAnotherThreadTookWhatItSawBefore) {
  const auto acceptor = ShmConnection::await(std::move(ours), "connector", 0);
  const auto connector = ShmConnection::offer(std::move(theirs), "acceptor", 0);
  const iovec piece{const_cast<char*>("x"), 1};
  std::atomic<int64_t> sent{0}, read{0};
  std::atomic<bool> caller_reads{false}, over{false};
  std::mutex reading;  // one thread at a time
  const auto read_one = [&] {
    const std::lock_guard lock(reading);
    char byte;
    if (acceptor->receive(&byte, 1).bytes == 1) ++read;
  };
  char first;
  ASSERT_EQ(acceptor->receive(&first, 1).status, Status::kWouldBlock);
  std::thread caller([&] {
    while (!over) {
      if (caller_reads) read_one();
    }
  });
  Poller poller;
  poller.add(*acceptor, kReadable, 7);
  std::thread loop([&] {
    while (!over) {
      if (poller.wait(std::chrono::milliseconds(5000)).empty()) continue;
      if (!caller_reads) read_one();
    }
  });
  for (int round = 0; round < 1000 && read == sent; ++round) {
    caller_reads = true;
    for (int i = 0; i < 20; ++i) {
      connector->send(&piece, 1);
      ++sent;
      while (read < sent) continue;
    }
    caller_reads = false;
    connector->send(&piece, 1);
    ++sent;
    const auto limit = std::chrono::steady_clock::now() + kLimit;
    while (read < sent && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_EQ(read, sent) << "round " << round;
  }
  over = true;
  poller.wake();
  caller.join();
  loop.join();
  poller.remove(*acceptor, 7);
}

// More often than a socket has room for signs.
TEST_F(ShmConnectionTest, APollerIsWokenHoweverOftenItSlept) {
  const auto caller = ShmConnection::offer(std::move(theirs), "callee", 0);
  const auto callee = ShmConnection::await(std::move(ours), "caller", 0);
  Poller poller;
  ASSERT_TRUE(poller.add(*callee, kReadable, 7));
  char byte = 0;
  constexpr int kTimes = 3000;
  std::atomic<int> received{0};
  std::thread peer([&] {
    const iovec piece{&byte, 1};
    for (int i = 0; i < kTimes; ++i) {
      while (received < i) std::this_thread::yield();
      EXPECT_EQ(caller->send(&piece, 1).status, Status::kDone);
    }
  });
  char got;
  while (received < kTimes) {
    ASSERT_EQ(poller.wait(kLimit).size(), 1u) << received;
    if (callee->receive(&got, 1).status == Status::kDone) ++received;
  }
  peer.join();
  poller.remove(*callee, 7);
}

TEST_F(ShmConnectionTest, APausedConnectionTellsItsEndOnce) {
  auto caller = ShmConnection::offer(std::move(theirs), "callee", 0);
  const auto callee = ShmConnection::await(std::move(ours), "caller", 0);
  Poller poller;
  ASSERT_TRUE(poller.add(*callee, kReadable, 7));
  poller.wait(std::chrono::milliseconds(1));  // takes the memory
  poller.change(*callee, kNothing, 7);

  caller.reset();

  EXPECT_EQ(poller.wait(kLimit).size(), 1u);
  EXPECT_EQ(poller.wait(std::chrono::milliseconds(1)).size(), 0u);
  poller.remove(*callee, 7);
}

TEST_F(ShmConnectionTest, AMessageThatIsNoOfferIsRefused) {
  send_with(theirs.get(), "GET / HTTP/1.1\r\n\r\n", {});
  const IoResult got = first_receive();
  EXPECT_EQ(got.status, Status::kClosed);
  EXPECT_THAT(got.why, HasSubstr("offered no shared memory"));
}

TEST_F(ShmConnectionTest, AnOfferWithoutMemoryIsRefused) {
  PrivateDescriptor memory;
  send_with(theirs.get(), true_offer(memory), {});
  EXPECT_THAT(first_receive().why, HasSubstr("offered no shared memory"));
}

TEST_F(ShmConnectionTest, FurtherDescriptorsOfAnOfferAreClosed) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const auto connection = ShmConnection::await(std::move(ours), "somebody", 0);
  const size_t before = open_descriptors();
  send_with(theirs.get(), message, {memory.get(), lane[1].get(), memory.get(), memory.get()});
  char byte;

  EXPECT_THAT(connection->receive(&byte, 1).why, HasSubstr("offered no shared memory"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ShmConnectionTest, AnOfferWithMemoryOnlyIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const size_t before = open_descriptors();
  send_with(theirs.get(), message, {memory.get()});
  EXPECT_THAT(first_receive().why, HasSubstr("offered no shared memory"));
  EXPECT_EQ(open_descriptors(), before - 1);  // first_receive() has closed the connection
}

TEST_F(ShmConnectionTest, AnOfferWhoseLaneIsNoSocketOfMessagesIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  send_with(theirs.get(), message, {memory.get(), memory.get()});
  EXPECT_THAT(first_receive().why, HasSubstr("offered no shared memory"));
}

TEST_F(ShmConnectionTest, DescriptorsArriveInTheirOrderAndBesideTheBytes) {
  const auto acceptor = ShmConnection::await(std::move(ours), "connector", 17);
  const auto connector = ShmConnection::offer(std::move(theirs), "acceptor", 18);
  DescriptorLane& there = *acceptor->descriptor_lane();
  DescriptorLane& here = *connector->descriptor_lane();
  EXPECT_EQ(there.other_process(), 17);
  EXPECT_FALSE(there.take_descriptor());
  const PrivateDescriptor first(memfd_create("first", MFD_CLOEXEC));
  const PrivateDescriptor second(memfd_create("second", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(first.get(), 1), 0);
  ASSERT_EQ(ftruncate(second.get(), 2), 0);

  ASSERT_TRUE(here.hand_over(first));
  ASSERT_TRUE(here.hand_over(second));
  ASSERT_TRUE(there.hand_over(second));

  EXPECT_EQ(size_of(there.take_descriptor()), 1u);
  EXPECT_EQ(size_of(there.take_descriptor()), 2u);
  EXPECT_FALSE(there.take_descriptor());
  EXPECT_EQ(size_of(here.take_descriptor()), 2u);
}

TEST_F(ShmConnectionTest, APeerThatTakesNoDescriptorsIsGivenFewAndOneThatIsGoneNone) {
  auto acceptor = ShmConnection::await(std::move(ours), "connector", 0);
  const auto connector = ShmConnection::offer(std::move(theirs), "acceptor", 0);
  const PrivateDescriptor memory(memfd_create("memory", MFD_CLOEXEC));
  DescriptorLane& here = *connector->descriptor_lane();
  size_t given = 0;
  while (given < 100'000 && here.hand_over(memory)) ++given;
  EXPECT_LT(given, 100'000u);
  char byte;
  acceptor->receive(&byte, 1);
  acceptor = nullptr;
  EXPECT_FALSE(here.hand_over(memory));
}

TEST_F(ShmConnectionTest, SeveralDescriptorsInOneMessageAreClosed) {
  const auto connection = connection_with_lane();
  const size_t before = open_descriptors();
  send_with(lane[0].get(), "x", {theirs.get(), theirs.get()});
  send_with(lane[0].get(), "x", {});

  EXPECT_FALSE(connection->descriptor_lane()->take_descriptor());
  EXPECT_FALSE(connection->descriptor_lane()->take_descriptor());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ShmConnectionTest, ADescriptorThatComesWithoutBytesDoesNotStayOpen) {
  const auto connection = connection_with_lane();
  const size_t before = open_descriptors();
  send_with(lane[0].get(), "", {theirs.get()});

  connection->descriptor_lane()->take_descriptor();
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ShmConnectionTest, MemoryThatCannotBeWrittenIsRefused) {
  PrivateDescriptor memory;
  const std::string message = true_offer(memory);
  const PrivateDescriptor still(memfd_create("still", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(still.get(), static_cast<off_t>(size_of(memory))), 0);
  ASSERT_EQ(
      fcntl(still.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  offer(message, still.get());
  EXPECT_THAT(first_receive().why, HasSubstr("with the seals"));
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
  const auto connection = ShmConnection::await(std::move(ours), "somebody", 0);
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
    const auto connection = ShmConnection::offer(PrivateDescriptor(pair[1]), "parent", 0);
    const iovec piece{const_cast<char*>("last words"), 10};
    connection->send(&piece, 1);
    pause();
    _exit(0);
  }
  close(pair[1]);
  const auto connection = ShmConnection::await(PrivateDescriptor(pair[0]), "child", 0);
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
