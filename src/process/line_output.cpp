// Writes queued lines without blocking.
// SPDX-License-Identifier: BSD-3-Clause

#include "process/line_output.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weft::process {
namespace {

constexpr size_t kChunkSize = size_t{64} << 10;
constexpr size_t kFullAt = 16;  // so many chunks

}  // namespace

void LineOutput::push(int descriptor, std::string_view prefix, std::string_view line) {
  if (chunks_.empty() || chunks_.back().descriptor != descriptor ||
      chunks_.back().bytes.size() >= kChunkSize) {
    chunks_.push_back({descriptor, {}});
  }
  chunks_.back().bytes.append(prefix).append(line).push_back('\n');
}

bool LineOutput::is_full() const { return chunks_.size() >= kFullAt; }

LineOutput::WriteResult LineOutput::write_part() {
  const Chunk& chunk = chunks_.front();
  // A pipe that polls writable takes PIPE_BUF bytes without blocking. The descriptor itself is left
  // blocking: it is shared with other processes, which do not expect it to change.
  const size_t size = std::min<size_t>(chunk.bytes.size() - written_, PIPE_BUF);
  const ssize_t written = ::write(chunk.descriptor, chunk.bytes.data() + written_, size);
  if (written < 0) {
    if (errno == EINTR || errno == EAGAIN) return WriteResult::kWritten;
    const int error = errno;
    drop(chunk.descriptor);
    errno = error;
    return error == EPIPE ? WriteResult::kReaderLeft : WriteResult::kFailed;
  }
  written_ += static_cast<size_t>(written);
  if (written_ == chunk.bytes.size()) {
    chunks_.pop_front();
    written_ = 0;
  }
  return WriteResult::kWritten;
}

void LineOutput::drop(int descriptor) {
  std::erase_if(chunks_,
                [descriptor](const Chunk& chunk) { return chunk.descriptor == descriptor; });
  written_ = 0;
}

}  // namespace weft::process
