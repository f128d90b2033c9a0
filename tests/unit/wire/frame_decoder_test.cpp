// SPDX-License-Identifier: BSD-3-Clause
#include "wire/frame_decoder.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"
#include "wire/outbox.h"

namespace weft::wire {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

std::shared_ptr<ReceivePool> pool() { return std::make_shared<ReceivePool>(0); }

class Stream {
 public:
  Stream() = default;
  explicit Stream(Outbox outbox) : outbox_(std::move(outbox)) {}
  Stream& frame(FrameHeader header, const std::string& body = "") {
    outbox_.add(header, std::as_bytes(std::span(body)));
    return *this;
  }
  Stream& tensors(FrameHeader header, const std::vector<at::Tensor>& tensors) {
    Encoder value;
    for (const at::Tensor& tensor : tensors) value.tensor(tensor);
    value.write("tail", 4);
    outbox_.add(header, {}, value);
    return *this;
  }
  Bytes bytes() {
    iovec pieces[64];
    Bytes all;
    while (!outbox_.empty()) {
      const int count = outbox_.gather(pieces, 64);
      size_t n = 0;
      for (int i = 0; i < count; ++i) {
        const auto* data = static_cast<const std::byte*>(pieces[i].iov_base);
        all.insert(all.end(), data, data + pieces[i].iov_len);
        n += pieces[i].iov_len;
      }
      outbox_.consume(n);
    }
    return all;
  }

 private:
  Outbox outbox_;
};

struct Received {
  FrameHeader header;
  std::string body;
  std::vector<at::Tensor> tensors;
};

std::vector<Received> feed(FrameDecoder& decoder, std::span<const std::byte> bytes, size_t piece) {
  std::vector<Received> frames;
  Frame frame;
  while (!bytes.empty()) {
    const std::span<std::byte> into = decoder.prepare();
    const size_t n = std::min({into.size(), bytes.size(), piece});
    std::memcpy(into.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    decoder.commit(n);
    while (decoder.next(frame)) {
      frames.push_back({frame.header,
                        {reinterpret_cast<const char*>(frame.body.data()), frame.body.size()},
                        std::move(frame.tensors)});
    }
  }
  return frames;
}

std::vector<Received> feed(std::span<const std::byte> bytes, size_t piece = SIZE_MAX) {
  FrameDecoder decoder(pool());
  return feed(decoder, bytes, piece);
}

// The message of the error that `bytes` are refused with.
std::string refusal(const Bytes& bytes) {
  try {
    feed(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
    return error.message();
  }
}

Bytes header_alone(FrameHeader header) {
  const auto* data = reinterpret_cast<const std::byte*>(&header);
  return {data, data + sizeof header};
}

Bytes everything() {
  const at::Tensor sparse =
      at::sparse_coo_tensor(at::tensor({0, 2}, at::kLong).view({1, 2}), at::ones({2}), {4});
  return Stream()
      .frame({FrameKind::kHello, 0, 0, 0, kHelloMagic}, "who")
      .frame({FrameKind::kPing, 0, 0, 0, 3})
      .tensors({FrameKind::kCall, 0, 0, 0, 1}, {at::arange(5), at::Tensor(), at::empty({0, 3})})
      .tensors({FrameKind::kReply, 0, 0, 0, 2},
               {at::arange(9000), at::arange(2), sparse, at::arange(40)})
      .frame({FrameKind::kReply, kFailed, 0, 0, 4}, std::string(70'000, 'x'))
      .tensors({FrameKind::kReply, 0, 0, 0, 5}, {at::Tensor(), at::arange(50'000)})
      .frame({FrameKind::kGoodbye}, "bye")
      .bytes();
}

TEST(FrameDecoder, FramesComeOutAsTheyWentIn) {
  const auto frames = feed(everything());

  ASSERT_EQ(frames.size(), 7u);
  EXPECT_EQ(frames[0].body, "who");
  EXPECT_EQ(frames[1].header.id, 3u);
  EXPECT_EQ(frames[2].body, "tail");
  ASSERT_EQ(frames[2].tensors.size(), 3u);
  EXPECT_TRUE(at::equal(frames[2].tensors[0], at::arange(5)));
  EXPECT_FALSE(frames[2].tensors[1].defined());
  EXPECT_EQ(frames[2].tensors[2].sizes(), at::IntArrayRef({0, 3}));
  ASSERT_EQ(frames[3].tensors.size(), 4u);
  EXPECT_TRUE(at::equal(frames[3].tensors[0], at::arange(9000)));
  EXPECT_TRUE(frames[3].tensors[2].is_sparse());
  EXPECT_EQ(frames[4].body.size(), 70'000u);
  EXPECT_TRUE(at::equal(frames[5].tensors[1], at::arange(50'000)));
  EXPECT_EQ(frames[6].body, "bye");
}

TEST(FrameDecoder, ByteByByteGivesTheSameAsAtOnce) {
  const Bytes bytes = everything();
  const auto at_once = feed(bytes);

  for (const size_t piece : {1, 2, 3, 7, 23, 24, 25, 1000, 4095, 65'536}) {
    const auto in_pieces = feed(bytes, piece);

    ASSERT_EQ(in_pieces.size(), at_once.size()) << piece;
    for (size_t i = 0; i < at_once.size(); ++i) {
      EXPECT_EQ(in_pieces[i].header.id, at_once[i].header.id) << piece;
      EXPECT_EQ(in_pieces[i].body, at_once[i].body) << piece;
      ASSERT_EQ(in_pieces[i].tensors.size(), at_once[i].tensors.size()) << piece;
      for (size_t t = 0; t < at_once[i].tensors.size(); ++t) {
        const at::Tensor& expected = at_once[i].tensors[t];
        const at::Tensor& got = in_pieces[i].tensors[t];
        ASSERT_EQ(got.defined(), expected.defined());
        if (!expected.defined()) continue;
        EXPECT_TRUE(expected.is_sparse() ? at::equal(got.to_dense(), expected.to_dense())
                                         : at::equal(got, expected));
      }
    }
  }
}

TEST(FrameDecoder, KnowsWhetherItStandsBetweenFrames) {
  const Bytes bytes = Stream().tensors({FrameKind::kReply}, {at::arange(9000)}).bytes();
  FrameDecoder decoder(pool());
  EXPECT_TRUE(decoder.at_frame_boundary());

  feed(decoder, std::span(bytes).first(1), 1);
  EXPECT_FALSE(decoder.at_frame_boundary());
  feed(decoder, std::span(bytes).subspan(1, bytes.size() - 2), SIZE_MAX);
  EXPECT_FALSE(decoder.at_frame_boundary());
  feed(decoder, std::span(bytes).last(1), 1);

  EXPECT_TRUE(decoder.at_frame_boundary());
}

TEST(FrameDecoder, ALargeBodyDoesNotStayAllocated) {
  const Bytes bytes =
      Stream().frame({FrameKind::kReply, kFailed}, std::string(1 << 20, 'x')).bytes();
  FrameDecoder decoder(pool());

  feed(decoder, bytes, SIZE_MAX);
  EXPECT_GE(decoder.buffer_bytes(), size_t{1} << 20);
  decoder.prepare();

  EXPECT_EQ(decoder.buffer_bytes(), size_t{64} << 10);
}

TEST(FrameDecoder, AClaimedBodyAllocatesNothing) {
  const Bytes bytes = header_alone({FrameKind::kCall, 0, 0, 256u << 20, 1, 0});
  FrameDecoder decoder(pool());

  feed(decoder, bytes, SIZE_MAX);

  EXPECT_EQ(decoder.buffer_bytes(), size_t{64} << 10);
}

TEST(FrameDecoder, RefusesHeadersThatNoWorkerSends) {
  EXPECT_THAT(refusal(Bytes(24)), HasSubstr("0x00"));
  EXPECT_THAT(refusal(header_alone({static_cast<FrameKind>(9)})), HasSubstr("0x09"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kPing, 1})), HasSubstr("flags"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kCall, kFailed})), HasSubstr("flags"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kHello, 0, 0, 0, 1})), HasSubstr("magic"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kHello, 0, 0, 16'385, kHelloMagic})),
              HasSubstr("16385"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kCall, 0, 0, (256u << 20) + 1})), HasSubstr("body"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kPing, 0, 0, 1})), HasSubstr("body"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kPing, 0, 1})), HasSubstr("tensors"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kCall, 0, 4097})), HasSubstr("4097"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kReply, kFailed, 1})), HasSubstr("tensors"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kCall, 0, 0, 0, 0, (uint64_t{1} << 40) + 1})),
              HasSubstr("bytes"));
}

// --- pieces ------------------------------------------------------------------------------------

// A call with a body and tensors of all sizes, more than three pieces in all, and pings between.
Bytes large_call_with_pings(size_t body_bytes) {
  Encoder value;
  for (const int64_t elements : {3, 100'000, 0, 700, 30'000}) value.tensor(at::arange(elements));
  value.write(std::string(body_bytes, 'x').data(), body_bytes);
  Outbox large;
  const std::string prelude = "prelude";
  large.add({FrameKind::kCall, kNoted, 0, 0, 77}, std::as_bytes(std::span(prelude)), value,
            LargeFrames::kInPieces);
  Bytes all;
  iovec parts[64];
  for (uint64_t id = 0; !large.empty(); ++id) {
    EXPECT_TRUE(large.at_cut());
    const Bytes ping = Stream().frame({FrameKind::kPing, 0, 0, 0, id}).bytes();
    all.insert(all.end(), ping.begin(), ping.end());
    do {
      const int count = large.gather(parts, 64, Outbox::Extent::kToNextCut);
      for (int i = 0; i < count; ++i) {
        const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
        all.insert(all.end(), data, data + parts[i].iov_len);
        large.consume(parts[i].iov_len);
      }
    } while (!large.at_cut());
  }
  return all;
}

TEST(FrameDecoder, SmallFramesComeBetweenThePiecesOfALargeOne) {
  for (const size_t body_bytes : {size_t{5}, size_t{600'000}}) {
    const Bytes bytes = large_call_with_pings(body_bytes);
    for (const size_t piece : {size_t{1}, size_t{24}, size_t{1000}, size_t{70'000}, SIZE_MAX}) {
      if (piece == 1 && body_bytes > 5) continue;

      const auto frames = feed(bytes, piece);

      ASSERT_GE(frames.size(), 5u) << piece;
      for (size_t i = 0; i + 1 < frames.size(); ++i) {
        EXPECT_EQ(frames[i].header.kind, FrameKind::kPing);
        EXPECT_EQ(frames[i].header.id, i);
      }
      const Received& call = frames.back();
      EXPECT_EQ(call.header.id, 77u);
      EXPECT_EQ(call.header.flags, kNoted);
      EXPECT_EQ(call.body, "prelude" + std::string(body_bytes, 'x'));
      ASSERT_EQ(call.tensors.size(), 5u);
      EXPECT_TRUE(at::equal(call.tensors[1], at::arange(100'000)));
      EXPECT_TRUE(at::equal(call.tensors[4], at::arange(30'000)));
    }
  }
}

TEST(FrameDecoder, WithinALargeFrameItIsNotBetweenFrames) {
  const Bytes bytes = header_alone({FrameKind::kCall, kInPieces, 0, 1000, 1});
  FrameDecoder decoder(pool());

  feed(decoder, bytes, SIZE_MAX);

  EXPECT_FALSE(decoder.at_frame_boundary());
}

TEST(FrameDecoder, AnnouncedPiecesAllocateLittle) {
  Bytes bytes = header_alone({FrameKind::kCall, kInPieces, 0, 256u << 20, 1, 0});
  const Bytes piece = header_alone({FrameKind::kPiece, 0, 0, 1u << 20, 1, 0});
  bytes.insert(bytes.end(), piece.begin(), piece.end());
  FrameDecoder decoder(pool());

  feed(decoder, bytes, SIZE_MAX);
  decoder.prepare();

  EXPECT_LE(decoder.buffer_bytes(), size_t{128} << 10);
}

TEST(FrameDecoder, RefusesPiecesThatDoNotBelong) {
  const auto both = [](const FrameHeader& first, const FrameHeader& second) {
    Bytes bytes = header_alone(first);
    const Bytes more = header_alone(second);
    bytes.insert(bytes.end(), more.begin(), more.end());
    return refusal(bytes);
  };
  const FrameHeader call{FrameKind::kCall, kInPieces, 0, 1000, 1};
  EXPECT_THAT(refusal(header_alone({FrameKind::kPiece, 0, 0, 10, 1})), HasSubstr("has not begun"));
  EXPECT_THAT(both(call, {FrameKind::kPiece, 0, 0, 10, 2}), HasSubstr("has not begun"));
  EXPECT_THAT(both(call, {FrameKind::kPiece, 0, 0, 1001, 1}), HasSubstr("1000 are left"));
  EXPECT_THAT(both(call, {FrameKind::kPiece, 0, 0, 0, 1}), HasSubstr("a piece of 0 bytes"));
  EXPECT_THAT(both(call, call), HasSubstr("within another"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kCall, kInPieces, 0, 0, 1})), HasSubstr("without"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kPing, kInPieces})), HasSubstr("flags"));
  EXPECT_THAT(refusal(header_alone({FrameKind::kPiece, 0, 0, (1u << 20) + 1})), HasSubstr("body"));
}

TEST(FrameDecoder, RefusesBytesOfTensorsThatItsTableDoesNotHave) {
  Bytes bytes = Stream().tensors({FrameKind::kReply}, {at::arange(4)}).bytes();
  bytes[16] = static_cast<std::byte>(31);  // bulk bytes: one less

  EXPECT_THAT(refusal(bytes), HasSubstr("its table says"));
}

TEST(FrameDecoder, RefusesAStrangerByItsFirstByte) {
  FrameDecoder decoder(pool());
  decoder.expect_hello();
  const std::byte first{'G'};

  EXPECT_THROW(feed(decoder, {&first, 1}, 1), Error);
}

TEST(FrameDecoder, OnlyAHelloOrAGoodbyeAnswersAHello) {
  for (const FrameHeader& header :
       {FrameHeader{FrameKind::kHello, 0, 0, 0, kHelloMagic}, FrameHeader{FrameKind::kGoodbye}}) {
    FrameDecoder decoder(pool());
    decoder.expect_answer_to_hello();
    EXPECT_EQ(feed(decoder, Stream().frame(header, "who").bytes(), 1).size(), 1u);
  }
  for (const FrameKind kind : {FrameKind::kCall, FrameKind::kReply, FrameKind::kCancel,
                               FrameKind::kPing, FrameKind::kPong, FrameKind::kPiece}) {
    FrameDecoder decoder(pool());
    decoder.expect_answer_to_hello();
    const auto first = static_cast<std::byte>(kind);
    EXPECT_THROW(feed(decoder, {&first, 1}, 1), Error) << "kind " << static_cast<int>(kind);
  }
}

TEST(FrameDecoder, AfterTheHelloAnythingMayCome) {
  const Bytes hello = Stream().frame({FrameKind::kHello, 0, 0, 0, kHelloMagic}, "who").bytes();
  const Bytes ping = Stream().frame({FrameKind::kPing}).bytes();
  FrameDecoder decoder(pool());
  decoder.expect_hello();
  feed(decoder, hello, 1);

  decoder.expect_any();

  EXPECT_EQ(feed(decoder, ping, 1).size(), 1u);
}

// --- carriers --------------------------------------------------------------------------------

// Keeps the tensors in a list; the place is a number in it.
class ListCarrier final : public Carrier {
 public:
  void stage(Encoder::OutgoingTensor& tensor) override {
    tensor.staged = tensor.bytes >= kSmallestCarried && !tensor.in_frame_only;
  }
  std::optional<Place> place(const Encoder::OutgoingTensor& tensor) override {
    if (declines) return std::nullopt;
    list.push_back(tensor.keep.contiguous());
    return Place{1, 1, {static_cast<std::byte>(list.size() - 1)}};
  }
  size_t untaken_bytes() override { return 0; }
  c10::DataPtr take(const Place& place, size_t bytes) override {
    const auto number = static_cast<size_t>(place.bytes[0]);
    if (number >= list.size()) Decoder::fail("no such tensor");
    EXPECT_EQ(bytes, static_cast<size_t>(list[number].nbytes()));
    return {list[number].data_ptr(), new at::Tensor(list[number]),
            [](void* context) { delete static_cast<at::Tensor*>(context); },
            c10::Device(c10::DeviceType::CPU)};
  }

  std::vector<at::Tensor> list;
  bool declines = false;
};

class CarriedTensors : public testing::Test {
 protected:
  Bytes frame_of(const std::vector<at::Tensor>& tensors,
                 LargeFrames large = LargeFrames::kInPieces) {
    Encoder value;
    for (const at::Tensor& tensor : tensors) value.tensor(tensor);
    for (Encoder::OutgoingTensor& tensor : value.tensors()) carrier.stage(tensor);
    value.write("tail", 4);
    Outbox outbox;
    outbox.add(FrameHeader{FrameKind::kReply}, {}, value, large, &carrier);
    Stream stream(std::move(outbox));
    return stream.bytes();
  }
  std::vector<Received> receive(std::span<const std::byte> bytes, size_t piece = SIZE_MAX) {
    FrameDecoder decoder(pool());
    decoder.use_carrier(&carrier);
    return feed(decoder, bytes, piece);
  }
  std::string refusal_of(std::span<const std::byte> bytes, bool has_carrier) {
    FrameDecoder decoder(pool());
    if (has_carrier) decoder.use_carrier(&carrier);
    try {
      feed(decoder, bytes, SIZE_MAX);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
      return error.message();
    }
    return "";
  }

  ListCarrier carrier;
  const at::Tensor small = at::arange(10);
  const at::Tensor large = at::arange(100'000);
};

TEST_F(CarriedTensors, LargeOnesAreNotInTheFrameAndArriveInTheirOrder) {
  const at::Tensor mixed[] = {small, large, small + 1, large + 1, at::Tensor()};
  const Bytes bytes = frame_of({mixed, mixed + 5});
  EXPECT_LT(bytes.size(), 1000u);
  EXPECT_EQ(carrier.list.size(), 2u);
  for (const size_t piece : {size_t{1}, size_t{7}, SIZE_MAX}) {
    const auto frames = receive(bytes, piece);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].body, "tail");
    ASSERT_EQ(frames[0].tensors.size(), 5u);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(frames[0].tensors[i].equal(mixed[i])) << i;
    EXPECT_FALSE(frames[0].tensors[4].defined());
  }
}

TEST_F(CarriedTensors, BesideLargeOnesThatAreInTheFrame) {
  carrier.declines = true;
  const Bytes all_in_frame = frame_of({large, large});
  EXPECT_GT(all_in_frame.size(), 2 * large.nbytes());
  EXPECT_TRUE(receive(all_in_frame)[0].tensors[1].equal(large));
  carrier.declines = false;

  const at::Tensor sparse =
      at::sparse_coo_tensor(at::stack({at::arange(100'000), at::arange(100'000)}),
                            at::arange(100'000), {100'000, 100'000})
          .coalesce();
  for (const auto how : {LargeFrames::kWhole, LargeFrames::kInPieces}) {
    carrier.list.clear();
    const Bytes bytes = frame_of({large, sparse, large + 1}, how);
    EXPECT_EQ(carrier.list.size(), 3u);  // the values of the sparse tensor, not its indices
    const auto frames = receive(bytes, 10'000);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_TRUE(frames[0].tensors[0].equal(large));
    EXPECT_TRUE(frames[0].tensors[1]._indices().equal(sparse._indices()));
    EXPECT_TRUE(frames[0].tensors[1]._values().equal(sparse._values()));
    EXPECT_TRUE(frames[0].tensors[2].equal(large + 1));
  }
}

TEST_F(CarriedTensors, AreRefusedWhereNoCarrierWasAgreedOn) {
  const Bytes bytes = frame_of({large});
  EXPECT_THAT(refusal_of(bytes, false), HasSubstr("bytes are not in the frame"));
  carrier.list.clear();
  EXPECT_THAT(refusal_of(bytes, true), HasSubstr("no such tensor"));
}

TEST_F(CarriedTensors, CannotBeTheIndicesOfASparseTensor) {
  Bytes bytes = frame_of({large.view({1, -1})});
  // Before the row of the tensor one that says: a sparse tensor follows.
  std::vector<char> row;
  TensorEntry entry;
  entry.dtype = at::kLong;
  entry.flags = kSparse;
  entry.dimensions = entry.sparse_dimensions = 1;
  entry.sizes[0] = 100'000;
  append_entry(row, entry);
  FrameHeader header = read_header(bytes.data());
  header.rows = 2;
  header.body_bytes += static_cast<uint32_t>(row.size());
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  const auto added = std::as_bytes(std::span(row));
  bytes.insert(bytes.begin() + kHeaderBytes, added.begin(), added.end());
  EXPECT_THAT(refusal_of(bytes, true), HasSubstr("bytes are not in the frame"));
}

}  // namespace
}  // namespace weft::wire
