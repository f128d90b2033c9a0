// Collects lines from many workers and writes them to this process's own output.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace weft::process {

// Cuts a stream of bytes into lines.
class LineSplitter {
 public:
  // Longer lines are cut, so that a worker that never ends its line cannot take all memory.
  static constexpr size_t kLongestLine = size_t{16} << 20;

  // Calls on_line(line), without the newline, for every line that these bytes complete.
  template <typename OnLine>
  void append(std::string_view piece, const OnLine& on_line) {
    for (size_t end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
      unfinished_.append(piece.substr(0, end));
      finish_line(on_line);
      piece.remove_prefix(end + 1);
    }
    unfinished_.append(piece);
    if (unfinished_.size() >= kLongestLine) finish_line(on_line);
  }

  // The stream has ended. Bytes after the last newline are a line too.
  template <typename OnLine>
  void finish(const OnLine& on_line) {
    if (!unfinished_.empty()) finish_line(on_line);
  }

 private:
  template <typename OnLine>
  void finish_line(const OnLine& on_line) {
    on_line(std::string_view(unfinished_));
    unfinished_.clear();
  }

  std::string unfinished_;
};

// Whole lines that wait to be written, in one queue for all descriptors: standard output and
// standard error are often the same file, and two queues would write into each other's lines.
class LineOutput {
 public:
  enum class WriteResult { kWritten, kReaderLeft, kFailed };

  void push(int descriptor, std::string_view prefix, std::string_view line);

  bool empty() const { return chunks_.empty(); }
  // True if so much waits that the workers should wait too.
  bool is_full() const;
  // The descriptor to wait for and to write to next. Requires !empty().
  int next_descriptor() const { return chunks_.front().descriptor; }

  // Writes some bytes to next_descriptor(), which must be writable according to poll(); does not
  // block then. On a failure, errno says why, and all lines of that descriptor are dropped.
  WriteResult write_part();

 private:
  struct Chunk {
    int descriptor;
    std::string bytes;
  };

  void drop(int descriptor);

  std::deque<Chunk> chunks_;
  size_t written_ = 0;  // bytes of the first chunk that are written
};

}  // namespace weft::process
