// A connection over a stream socket of any family.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

#include "transport/connection.h"
#include "transport/private_descriptor.h"

namespace weft::transport {

class SocketConnection : public Connection {
 public:
  /// `socket` must be in blocking mode, or check_connected() puts it into that.
  SocketConnection(PrivateDescriptor socket, std::string remote, const char* way);

  IoResult send(const iovec* buffers, int count) override;
  IoResult receive(void* to, size_t size) override;
  IoResult wait_and_receive(void* to, size_t size) override;
  void close_both_ways() override;
  void finish_sending() override;
  void check_connected() override;
  const std::string& remote_address() const override { return remote_; }
  std::string way() const override { return way_; }

 protected:
  int descriptor() const override { return socket_.get(); }

 private:
  IoResult receive_with(void* to, size_t size, int flags);

  PrivateDescriptor socket_;
  std::string remote_;
  const char* way_;
};

}  // namespace weft::transport
