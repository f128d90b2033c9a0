// A ring between an honest end and a neighbour that writes anything into the shared part: the
// honest end, writer or reader, touches nothing outside the ring, and what it says fits.
//
// Input: records of u8 what, u8 size, u64 value.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/shm/ring.h"

namespace weft::transport {
namespace {

constexpr size_t kBytes = 64;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Record {
  uint8_t what, size;
  uint64_t value;
};
constexpr size_t kRecordBytes = 10;

class Scene {
 public:
  void play(const Record& record) {
    switch (record.what % 10) {
      case 0:
        return write(record.size);
      case 1:
        return read(record.size);
      case 2:
        header_->written = record.value;
        return;
      case 3:
        header_->read = record.value;
        return;
      case 4:
        header_->written = header_->written + record.size;
        return;
      case 5:
        header_->read = header_->read + record.size;
        return;
      case 6:
        header_->finished = static_cast<uint32_t>(record.value);
        return;
      case 7:
        header_->reader_asks = header_->writer_asks = static_cast<uint32_t>(record.value);
        return;
      case 8:
        (void)writer_.ask_for_room(record.size);
        (void)reader_.ask_for_bytes(record.size);
        return;
      case 9:
        (void)(writer_.take_request() + reader_.take_request());
        (void)(writer_.has_room() || reader_.has_bytes());
        return;
    }
  }

 private:
  void write(size_t size) {
    const std::vector<char> text(size, 'x');
    const iovec pieces[2] = {{const_cast<char*>(text.data()), size / 2},
                             {const_cast<char*>(text.data()) + size / 2, size - size / 2}};
    const RingResult result = writer_.write(pieces, 2);
    require(result.bytes <= size && result.bytes <= kBytes);
    require(result.bytes == 0 || result.state == RingState::kFine);
  }
  void read(size_t size) {
    std::vector<std::byte> to(size);
    const RingResult result = reader_.read(to.data(), size);
    require(result.bytes <= size && result.bytes <= kBytes);
    require(result.bytes == 0 || result.state == RingState::kFine);
  }

  // On the heap, so that a sanitizer sees what lies outside.
  std::unique_ptr<RingHeader> header_{new RingHeader{}};
  std::unique_ptr<std::byte[]> data_{new std::byte[kBytes]()};
  RingWriter writer_{{header_.get(), data_.get(), kBytes}};
  RingReader reader_{{header_.get(), data_.get(), kBytes}};
};

}  // namespace
}  // namespace weft::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::transport;
  Scene scene;
  for (; size >= kRecordBytes; data += kRecordBytes, size -= kRecordBytes) {
    Record record{data[0], data[1], 0};
    std::memcpy(&record.value, data + 2, sizeof record.value);
    scene.play(record);
  }
  return 0;
}
