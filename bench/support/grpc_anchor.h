// gRPC as a peer: a synchronous server that sends bytes back, and the stub that calls it, as
// generated code makes them, without a message format. Exists only where the build found gRPC
// (WEFT_HAVE_GRPC).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#ifdef WEFT_HAVE_GRPC

#include <cstddef>
#include <memory>
#include <string>

namespace bench {

/// Announces its address and serves until the input ends.
void serve_grpc_echo();

class GrpcCaller {
 public:
  explicit GrpcCaller(const std::string& address);
  ~GrpcCaller();
  GrpcCaller(const GrpcCaller&) = delete;
  GrpcCaller& operator=(const GrpcCaller&) = delete;

  /// Median microseconds for `size` bytes to go out and come back.
  double echo_microseconds(size_t count, size_t size);

 private:
  struct Stub;
  std::unique_ptr<Stub> stub_;
};

}  // namespace bench

#endif
