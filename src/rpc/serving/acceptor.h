// Lets peers in: accepts connections and hears their hello before anything else of theirs.
//
// A connection that says something else, nothing for five seconds, or belongs to another group is
// closed with a log line; nothing is kept of it and no other connection is affected.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "rpc/io/io_loop.h"
#include "rpc/io/link.h"
#include "rpc/runtime.h"
#include "transport/connection.h"
#include "wire/hello.h"

namespace weft::rpc {

class Server;

class Acceptor final : public IoClient, public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(std::shared_ptr<Runtime> runtime, Server& server,
           std::unique_ptr<transport::Listener> listener);

  void start();
  /// No further connection is accepted.
  void stop();
  /// After the loop ended: closes those that were about to say hello.
  void close_guests() { guests_.clear(); }

  // IoClient:
  void on_event(bool readable, bool writable) override;
  void on_time(base::Time now) override;

 private:
  class Guest;
  void admit(std::unique_ptr<transport::Connection> connection);
  void pause(std::string_view why) WEFT_REQUIRES(mutex_);
  void turn_some_away();
  void on_guest_gone(Guest& guest);
  void log_turned_away(std::string_view from, std::string_view what, std::string_view why);

  const std::shared_ptr<Runtime> runtime_;
  Server& server_;
  uint64_t token_ = 0;

  base::Mutex mutex_;
  std::unique_ptr<transport::Listener> listener_ WEFT_GUARDED_BY(mutex_);

  // Touched by the I/O loop only, and after its end by close_guests().
  std::deque<std::shared_ptr<Guest>> guests_;  // oldest first
  base::Time log_again_at_{};
  uint64_t not_logged_ = 0;
};

}  // namespace weft::rpc
