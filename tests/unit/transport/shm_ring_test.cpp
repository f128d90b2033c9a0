// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "transport/shm/ring.h"

namespace weft::transport {
namespace {

// Memory of a ring, and its two ends.
class ShmRing : public testing::Test {
 protected:
  static constexpr size_t kBytes = 64;

  RingResult write(const std::string& text) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    return writer.write(&piece, 1);
  }
  std::string read(size_t most = 1000) {
    std::string text(most, '?');
    const RingResult got = reader.read(reinterpret_cast<std::byte*>(text.data()), most);
    text.resize(got.bytes);
    return text;
  }
  RingState state_of_read() {
    std::byte byte;
    return reader.read(&byte, 1).state;
  }

  std::unique_ptr<RingHeader> header{new RingHeader()};
  std::vector<std::byte> data = std::vector<std::byte>(kBytes);
  RingMemory memory{header.get(), data.data(), kBytes};
  RingWriter writer{memory};
  RingReader reader{memory};
};

TEST_F(ShmRing, WhatIsWrittenIsRead) {
  EXPECT_EQ(state_of_read(), RingState::kEmpty);
  EXPECT_EQ(write("hello").bytes, 5u);
  EXPECT_TRUE(reader.has_bytes());
  EXPECT_EQ(read(2), "he");
  EXPECT_EQ(read(), "llo");
  EXPECT_EQ(state_of_read(), RingState::kEmpty);
}

TEST_F(ShmRing, TakesAsMuchAsThereIsRoomFor) {
  const std::string text(kBytes + 10, 'x');
  EXPECT_EQ(write(text).bytes, kBytes);
  EXPECT_FALSE(writer.has_room());
  EXPECT_EQ(write("more").state, RingState::kEmpty);
  EXPECT_EQ(read(3), "xxx");
  EXPECT_TRUE(writer.has_room());
  EXPECT_EQ(write("more").bytes, 3u);
}

TEST_F(ShmRing, BytesGoRoundItsEnd) {
  for (int round = 0; round < 50; ++round) {
    const std::string text = "round " + std::to_string(round) + " of many through little memory";
    ASSERT_EQ(write(text).bytes, text.size());
    ASSERT_EQ(read(), text);
  }
}

TEST_F(ShmRing, PiecesAreOneStream) {
  std::string one = "one ", none, two = "two";
  const iovec pieces[] = {{one.data(), 4}, {none.data(), 0}, {two.data(), 3}};

  EXPECT_EQ(writer.write(pieces, 3).bytes, 7u);

  EXPECT_EQ(read(), "one two");
}

TEST_F(ShmRing, ItsEndComesAfterAllBytes) {
  write("last");
  writer.finish();

  EXPECT_TRUE(reader.has_bytes());
  EXPECT_EQ(read(), "last");
  EXPECT_EQ(state_of_read(), RingState::kFinished);
  EXPECT_TRUE(reader.has_bytes());  // a wait ends at once
  EXPECT_FALSE(reader.ask_for_bytes(1));
}

TEST_F(ShmRing, AReaderThatAsksGetsOneSign) {
  EXPECT_FALSE(writer.take_request());
  EXPECT_TRUE(reader.ask_for_bytes(1));
  write("x");
  EXPECT_TRUE(writer.take_request());
  write("y");
  EXPECT_FALSE(writer.take_request());
  EXPECT_FALSE(reader.ask_for_bytes(1));  // there is something
  write("z");
  EXPECT_FALSE(writer.take_request());
}

TEST_F(ShmRing, ThreadsThatSleepInDifferentWaysAskTogether) {
  EXPECT_TRUE(reader.ask_for_bytes(1));
  EXPECT_TRUE(reader.ask_for_bytes(2));
  write("x");
  EXPECT_EQ(writer.take_request(), 3u);
  EXPECT_EQ(writer.take_request(), 0u);
  header->reader_asks = 2;
  EXPECT_FALSE(reader.ask_for_bytes(1));  // takes back what it has asked, and no more
  EXPECT_EQ(writer.take_request(), 2u);
}

TEST_F(ShmRing, AWriterThatAsksGetsOneSign) {
  EXPECT_FALSE(writer.ask_for_room(1));
  write(std::string(kBytes, 'x'));
  EXPECT_TRUE(writer.ask_for_room(1));
  EXPECT_TRUE(reader.take_request());
  EXPECT_FALSE(reader.take_request());
  read(1);
  EXPECT_FALSE(writer.ask_for_room(1));
  EXPECT_FALSE(reader.take_request());
}

TEST_F(ShmRing, CountersThatCannotBeAreFoundOut) {
  write("abc");
  for (const uint64_t wrong : {uint64_t{kBytes + 1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    header->written = wrong;
    EXPECT_EQ(state_of_read(), RingState::kDamaged) << wrong;
    EXPECT_TRUE(reader.has_bytes());
  }
  header->written = 3;
  EXPECT_EQ(read(), "abc");
  header->written = 2;  // back
  EXPECT_EQ(state_of_read(), RingState::kDamaged);

  for (const uint64_t wrong : {uint64_t{4}, uint64_t{1} << 40, ~uint64_t{0} - kBytes}) {
    header->read = wrong;
    EXPECT_TRUE(writer.has_room());
    // More than there is room for as far as the writer knows: then it looks.
    EXPECT_EQ(write(std::string(kBytes, 'x')).state, RingState::kDamaged) << wrong;
  }
}

// A neighbour that writes anything anywhere: bytes may be wrong, nothing else happens.
TEST_F(ShmRing, WhateverTheOtherEndScribblesNothingOutsideIsTouched) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t value = random() >> (random() % 64);
    switch (random() % 8) {
      case 0:
        header->written = value;
        break;
      case 1:
        header->read = value;
        break;
      case 2:
        header->finished = static_cast<uint32_t>(value);
        break;
      case 3:
        header->reader_asks = static_cast<uint32_t>(value);
        break;
      case 4:
        header->writer_asks = static_cast<uint32_t>(value);
        break;
      case 5:
        data[value % kBytes] = std::byte(value);
        break;
      case 6:
        ASSERT_LE(write(std::string(value % 100, 'x')).bytes, kBytes);
        writer.take_request();
        writer.ask_for_room(1);
        break;
      default:
        ASSERT_LE(read(value % 100).size(), kBytes);
        reader.take_request();
        reader.ask_for_bytes(1);
    }
  }
}

// Two threads that sleep by asking for a sign, and wake only by one. A sign that is lost is a hang.
TEST_F(ShmRing, NoSignIsLost) {
  constexpr size_t kAll = 300'000;
  std::atomic<uint32_t> signs_for_reader{0}, signs_for_writer{0};
  const auto give = [](std::atomic<uint32_t>& sign) {
    sign = 1;
    sign.notify_one();
  };
  const auto sleep = [](std::atomic<uint32_t>& sign) {
    sign.wait(0);
    sign = 0;
  };

  std::thread reading([&] {
    std::mt19937 random(1);
    std::byte into[100];
    for (size_t done = 0; done < kAll;) {
      const RingResult got = reader.read(into, 1 + random() % sizeof into);
      for (size_t i = 0; i < got.bytes; ++i) ASSERT_EQ(into[i], std::byte((done + i) % 251));
      done += got.bytes;
      if (reader.take_request()) give(signs_for_writer);
      if (got.state != RingState::kEmpty || !reader.ask_for_bytes(1)) continue;
      if (reader.take_request()) give(signs_for_writer);
      sleep(signs_for_reader);
    }
  });
  std::mt19937 random(2);
  std::byte from[100];
  for (size_t done = 0; done < kAll;) {
    const size_t n = std::min<size_t>(1 + random() % sizeof from, kAll - done);
    for (size_t i = 0; i < n; ++i) from[i] = std::byte((done + i) % 251);
    const iovec piece{from, n};
    const RingResult sent = writer.write(&piece, 1);
    done += sent.bytes;
    if (writer.take_request()) give(signs_for_reader);
    if (sent.state == RingState::kEmpty && writer.ask_for_room(1)) sleep(signs_for_writer);
  }
  reading.join();
}

}  // namespace
}  // namespace weft::transport
