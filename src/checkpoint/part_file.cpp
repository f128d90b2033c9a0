// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::checkpoint {

namespace {

using Head = std::array<std::byte, 16>;
constexpr int kPieces = 64;
constexpr size_t kReadBytes = 1 << 20;

Head make_head() {
  constexpr char kText[16] = {'w', 'e', 'f', 't', ' ', 'p', 'a', 'r', 't', 1};
  Head head;
  std::memcpy(head.data(), kText, sizeof kText);
  return head;
}

}  // namespace

PartWriter::PartWriter(std::string path) : file_(std::move(path)) { file_.write(make_head()); }

void PartWriter::add(const Entry& entry) {
  Encoder encoder;
  Codec<Entry>::encode(encoder, entry);
  outbox_.add({.kind = wire::FrameKind::kReply, .id = entries_++}, {}, encoder);
  write_out();
}

void PartWriter::write_out() {
  iovec pieces[kPieces];
  while (!outbox_.empty()) {
    const int count = outbox_.gather(pieces, kPieces);
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) {
      file_.write({static_cast<const std::byte*>(pieces[i].iov_base), pieces[i].iov_len});
      bytes += pieces[i].iov_len;
    }
    outbox_.consume(bytes);
  }
}

PartSeal PartWriter::commit() {
  file_.commit();
  return {file_.bytes(), file_.checksum()};
}

PartReader::PartReader(const std::string& path, const PartSeal& seal)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) throw_storage("open", path_);
  verify(seal);
  rewind();
}

void PartReader::verify(const PartSeal& seal) {
  std::vector<std::byte> buffer(kReadBytes);
  Checksum checksum;
  uint64_t bytes = 0;
  while (const size_t got = read_some(buffer)) {
    checksum.add(buffer.data(), got);
    bytes += got;
  }
  if (bytes != seal.bytes) fail(fmt::format("{} bytes long, not {}", bytes, seal.bytes));
  if (checksum.value() != seal.checksum) {
    fail(fmt::format("its checksum is {:016x}, not {:016x}", checksum.value(), seal.checksum));
  }
}

void PartReader::rewind() {
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) throw_storage("read", path_);
  Head head{};
  if (read_some(head) != head.size() || head != make_head()) {
    fail("it does not begin as a part of this version does");
  }
  // What is loaded is copied into its place: there is nothing to keep memory for.
  decoder_ = std::make_unique<wire::FrameDecoder>(std::make_shared<wire::ReceivePool>(0));
}

bool PartReader::next(Entry& entry) {
  wire::Frame frame;
  try {
    while (!decoder_->next(frame)) {
      const size_t got = read_some(decoder_->prepare());
      decoder_->commit(got);
      if (got == 0) {
        if (!decoder_->at_frame_boundary()) fail("it ends in the middle of an entry");
        return false;
      }
    }
    if (frame.header.kind != wire::FrameKind::kReply || frame.header.id != entries_++) {
      fail(fmt::format("its entry {} is out of order", entries_ - 1));
    }
    Decoder decoder(frame.body, frame.tensors);
    entry = Codec<Entry>::decode(decoder);
    decoder.finish();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadMessage) throw;
    fail(error.message());
  }
}

size_t PartReader::read_some(std::span<std::byte> to) {
  for (;;) {
    const ssize_t got = ::read(file_.get(), to.data(), to.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) throw_storage("read", path_);
  }
}

void PartReader::fail(const std::string& why) const {
  throw Error(ErrorCode::kStorageFailed, fmt::format("{} is damaged: {}", path_, why));
}

}  // namespace weft::checkpoint
