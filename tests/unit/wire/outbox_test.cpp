// SPDX-License-Identifier: BSD-3-Clause
#include "wire/outbox.h"

#include <array>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace weft::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const char* text) {
  const auto* data = reinterpret_cast<const std::byte*>(text);
  return {data, data + std::strlen(text)};
}

void append(Bytes& to, const void* data, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  to.insert(to.end(), from, from + size);
}

// Frames of all shapes: without body, with tensors that are copied, that are referred to, in a row.
class Mixture {
 public:
  Mixture() {
    outbox_.add({FrameKind::kPing, 0, 0, 0, 7});
    add({});
    add({at::arange(10)});
    add({at::arange(1500), at::arange(3), at::arange(2000)});
    outbox_.add({FrameKind::kGoodbye}, bytes_of("bye"));
    add({at::arange(700), at::arange(701)});
  }
  Outbox& outbox() { return outbox_; }

 private:
  void add(const std::vector<at::Tensor>& tensors) {
    Encoder value;
    value.scalar<uint32_t>(static_cast<uint32_t>(tensors.size()));
    for (const at::Tensor& tensor : tensors) value.tensor(tensor);
    outbox_.add({FrameKind::kCall, 0, 0, 0, tensors.size()}, bytes_of("prelude"), value);
  }
  Outbox outbox_;
};

// Writes at most `most` bytes at a time, seeing at most `pieces` pieces.
Bytes drain(Outbox& outbox, size_t most, int pieces) {
  Bytes stream;
  std::array<iovec, 64> list;
  while (!outbox.empty()) {
    const int count = outbox.gather(list.data(), pieces);
    EXPECT_GT(count, 0);
    EXPECT_LE(count, pieces);
    size_t left = most;
    const size_t before = stream.size();
    for (int i = 0; i < count && left > 0; ++i) {
      const size_t n = std::min(left, list[static_cast<size_t>(i)].iov_len);
      append(stream, list[static_cast<size_t>(i)].iov_base, n);
      left -= n;
    }
    outbox.consume(stream.size() - before);
  }
  return stream;
}

TEST(Outbox, IsEmptyAtFirst) {
  Outbox outbox;
  iovec piece;

  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.gather(&piece, 1), 0);
}

TEST(Outbox, FillsInTheSizesOfAFrame) {
  Outbox outbox;
  Encoder value;
  value.scalar<uint16_t>(5);
  value.tensor(at::zeros({4}, at::kDouble));

  outbox.add({FrameKind::kCall, kNamed, 0, 0, 99}, bytes_of("abc"), value);
  const Bytes stream = drain(outbox, SIZE_MAX, 64);

  FrameHeader header;
  std::memcpy(&header, stream.data(), kHeaderBytes);
  EXPECT_EQ(header.kind, FrameKind::kCall);
  EXPECT_EQ(header.flags, kNamed);
  EXPECT_EQ(header.rows, 1);
  EXPECT_EQ(header.body_bytes, 20u + 3 + 2);  // a row of one dimension, the prelude, the value
  EXPECT_EQ(header.bulk_bytes, 32u);
  EXPECT_EQ(header.id, 99u);
  EXPECT_EQ(stream.size(), kHeaderBytes + 25 + 32);
}

TEST(Outbox, ALargeTensorIsSentFromWhereItLies) {
  Outbox outbox;
  const at::Tensor tensor = at::zeros({5000});
  Encoder value;
  value.tensor(tensor);
  outbox.add({FrameKind::kReply}, {}, value);
  std::array<iovec, 8> pieces;

  const int count = outbox.gather(pieces.data(), 8);

  ASSERT_EQ(count, 2);
  EXPECT_EQ(pieces[1].iov_base, tensor.data_ptr());
  EXPECT_EQ(pieces[1].iov_len, 20'000u);
}

TEST(Outbox, KeepsALargeTensorUntilItIsWritten) {
  Outbox outbox;
  at::Tensor tensor = at::zeros({5000});
  const auto weak = c10::weak_intrusive_ptr<at::TensorImpl>(tensor.getIntrusivePtr());
  {
    Encoder value;
    value.tensor(tensor);
    outbox.add({FrameKind::kReply}, {}, value);
  }
  tensor.reset();

  outbox.consume(outbox.bytes() - 1);
  EXPECT_FALSE(weak.expired());
  outbox.consume(1);

  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, WritesTheSameBytesInPartsOfAnySize) {
  const Bytes whole = drain(Mixture().outbox(), SIZE_MAX, 64);

  for (size_t most = 1; most < 100; ++most) {
    EXPECT_EQ(drain(Mixture().outbox(), most, 64), whole) << most << " bytes at a time";
  }
  for (int pieces = 2; pieces < 12; ++pieces) {
    EXPECT_EQ(drain(Mixture().outbox(), SIZE_MAX, pieces), whole) << pieces << " pieces at a time";
    EXPECT_EQ(drain(Mixture().outbox(), 999, pieces), whole) << pieces << " pieces at a time";
  }
}

TEST(Outbox, APartialWriteMayEndAtAnyByte) {
  const Bytes whole = drain(Mixture().outbox(), SIZE_MAX, 64);

  for (size_t end = 1; end < whole.size(); end += end < 600 ? 1 : 37) {
    Mixture mixture;
    Outbox& outbox = mixture.outbox();
    outbox.consume(end);
    ASSERT_EQ(outbox.bytes(), whole.size() - end);
    ASSERT_EQ(drain(outbox, SIZE_MAX, 64),
              Bytes(whole.begin() + static_cast<long>(end), whole.end()))
        << "cut at " << end;
  }
}

TEST(Outbox, MayBeFilledWhileItIsHalfWritten) {
  Mixture first, second;
  Bytes expected = drain(first.outbox(), SIZE_MAX, 64);
  append(expected, expected.data(), kHeaderBytes);  // the ping that is its first frame
  Outbox& outbox = second.outbox();

  outbox.consume(5000);
  outbox.add({FrameKind::kPing, 0, 0, 0, 7});

  EXPECT_EQ(drain(outbox, SIZE_MAX, 64), Bytes(expected.begin() + 5000, expected.end()));
}

TEST(Outbox, TakesAllFramesOfAnotherAgainAndAgain) {
  const Bytes whole = drain(Mixture().outbox(), SIZE_MAX, 64);
  Outbox taker;
  for (int i = 0; i < 3; ++i) {
    Mixture mixture;

    taker.take_all(mixture.outbox());

    EXPECT_TRUE(mixture.outbox().empty());
    mixture.outbox().add({FrameKind::kPing});
    EXPECT_EQ(mixture.outbox().bytes(), kHeaderBytes);
    EXPECT_EQ(taker.bytes(), whole.size());
    EXPECT_EQ(drain(taker, 999, 64), whole);
    EXPECT_TRUE(taker.at_cut());
  }
}

TEST(Outbox, CountsFramesUntilItIsEmpty) {
  Mixture mixture;

  drain(mixture.outbox(), SIZE_MAX, 64);

  EXPECT_EQ(mixture.outbox().bytes(), 0u);
}

}  // namespace
}  // namespace weft::wire
