// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_file.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "weft/codec.h"
#include "weft/error.h"
#include "wire/frame_decoder.h"

namespace weft::checkpoint {

namespace {

using Head = std::array<std::byte, 16>;
constexpr int kBuffers = 64;

Head make_head() {
  constexpr char kText[16] = {'w', 'e', 'f', 't', ' ', 'p', 'a', 'r', 't', 1};
  Head head;
  std::memcpy(head.data(), kText, sizeof kText);
  return head;
}

}  // namespace

PartWriter::PartWriter(std::string path, std::shared_ptr<Disk> disk)
    : file_(std::move(path), std::move(disk)) {
  file_.write(make_head());
}

void PartWriter::add(const Entry& entry) {
  Encoder encoder;
  Codec<Entry>::encode(encoder, entry);
  outbox_.add({.kind = wire::FrameKind::kReply, .id = entries_++}, {}, encoder);
  write_out();
}

void PartWriter::write_out() {
  iovec buffers[kBuffers];
  while (!outbox_.empty()) {
    const int count = outbox_.gather(buffers, kBuffers);
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) {
      file_.write({static_cast<const std::byte*>(buffers[i].iov_base), buffers[i].iov_len});
      bytes += buffers[i].iov_len;
    }
    outbox_.consume(bytes);
  }
}

PartSeal PartWriter::commit() {
  file_.commit();
  return {file_.bytes(), file_.checksum()};
}

namespace {

/// Decodes the file and computes its checksum at the same time.
class PartReader {
 public:
  PartReader(const std::string& path, const PartSeal& seal, std::shared_ptr<Disk> disk)
      : path_(path),
        seal_(seal),
        disk_(std::move(disk)),
        file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_) throw_storage("open", path_);
  }

  std::vector<Entry> read() {
    std::vector<Entry> entries;
    std::optional<Error> failure;
    try {
      read_head();
      for (Entry entry; next(entry);) entries.push_back(std::move(entry));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kStorageFailed) throw;
      failure = error;
    } catch (const std::bad_alloc&) {
      failure = Error(ErrorCode::kLimitExceeded, "out of memory");
    } catch (const std::exception& error) {
      failure = Error(ErrorCode::kBadMessage, error.what());
    }
    if (failure) read_rest();
    // Compare first: if the file is damaged, that explains every other failure.
    compare_with_seal();
    if (failure && failure->code() != ErrorCode::kBadMessage) throw *failure;
    if (failure) fail(failure->message());
    return entries;
  }

 private:
  void read_head() {
    Head head{};
    for (size_t done = 0; done < head.size();) {
      const size_t got = read_some(std::span(head).subspan(done));
      if (got == 0) break;
      done += got;
    }
    if (head != make_head()) Decoder::fail("it does not begin as a part of this version does");
  }

  // False at the end of the file.
  bool next(Entry& entry) {
    wire::Frame frame;
    while (!decoder_.next(frame)) {
      const size_t got = read_some(decoder_.prepare());
      decoder_.commit(got);
      if (got > 0) continue;
      if (!decoder_.at_frame_boundary()) Decoder::fail("it ends in the middle of an entry");
      return false;
    }
    if (frame.header.kind != wire::FrameKind::kReply || frame.header.id != entries_++) {
      Decoder::fail(fmt::format("its entry {} is out of order", entries_ - 1));
    }
    Decoder decoder(frame.body, frame.tensors);
    entry = Codec<Entry>::decode(decoder);
    decoder.finish();
    return true;
  }

  void read_rest() {
    std::vector<std::byte> buffer(kBlockBytes);
    while (read_some(buffer) > 0) {
    }
  }

  // Returns 0 at the end of the file, or after as many bytes as the seal says.
  size_t read_some(std::span<std::byte> to) {
    to = to.first(std::min(to.size(), kBlockBytes));
    while (bytes_ <= seal_.bytes) {
      const ssize_t got = disk_->read(file_.get(), to);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_storage("read", path_);
      const auto count = static_cast<size_t>(got);
      checksum_.add(to.first(count));
      bytes_ += count;
      return count;
    }
    return 0;
  }

  void compare_with_seal() const {
    if (bytes_ > seal_.bytes) fail(fmt::format("more than {} bytes long", seal_.bytes));
    if (bytes_ < seal_.bytes) fail(fmt::format("{} bytes long, not {}", bytes_, seal_.bytes));
    if (checksum_.value() == seal_.checksum) return;
    fail(fmt::format("its checksum is {:016x}, not {:016x}", checksum_.value(), seal_.checksum));
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::kStorageFailed, fmt::format("{} is damaged: {}", path_, why));
  }

  const std::string path_;
  const PartSeal seal_;
  const std::shared_ptr<Disk> disk_;
  const transport::PrivateDescriptor file_;
  // A pool that keeps nothing: tensors are copied to their place and then freed.
  wire::FrameDecoder decoder_{std::make_shared<wire::ReceivePool>(0)};
  Checksum checksum_;
  uint64_t bytes_ = 0;
  uint64_t entries_ = 0;
};

}  // namespace

std::vector<Entry> read_entries(const std::string& path, const PartSeal& seal,
                                std::shared_ptr<Disk> disk) {
  return PartReader(path, seal, std::move(disk)).read();
}

}  // namespace weft::checkpoint
