// The anchor for many callers on one connection: the usual design, in which one thread does all the
// receiving. Callers write their own requests (whoever finds the socket busy leaves its frame to
// the one writing) and sleep on a futex until the IO thread has read their reply; the server reads
// what there is, answers it inline and writes all answers at once.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "support/raw_tcp.h"

namespace bench {

struct IoThreadFrame {
  uint64_t slot;
  std::array<uint64_t, 4> body;
};
static_assert(sizeof(IoThreadFrame) == 40, "as large as the frame of a call without arguments");

class IoThreadClient {
 public:
  IoThreadClient(Socket socket, size_t slots);
  ~IoThreadClient();

  /// One round trip. A slot is used by one thread at a time.
  void call(size_t slot);

 private:
  enum State : uint32_t { kPending, kSleeping, kDone };
  struct alignas(64) Slot {
    std::atomic<uint32_t> state{kDone};
  };

  void write(const IoThreadFrame& frame);
  void receive_replies();
  void complete(Slot& slot);

  Socket socket_;
  std::vector<Slot> slots_;

  std::mutex mutex_;
  bool writing_ = false;                // by mutex_
  std::vector<IoThreadFrame> queued_;   // by mutex_
  std::vector<IoThreadFrame> on_wire_;  // by the writer

  std::thread io_thread_;
};

/// Answers frames until the caller closes.
void serve_io_thread_client(const Socket& socket);

}  // namespace bench
