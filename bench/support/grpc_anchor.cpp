// SPDX-License-Identifier: BSD-3-Clause
#include "support/grpc_anchor.h"

#ifdef WEFT_HAVE_GRPC

#include <cstring>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>

#include "support/program.h"
#include "support/samples.h"

namespace bench {
namespace {

constexpr char kMethod[] = "/bench.Echo/Echo";

class EchoService final : public grpc::Service {
 public:
  EchoService() {
    using Handler =
        grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethod, grpc::internal::RpcMethod::NORMAL_RPC,
        new Handler(
            [](EchoService*, grpc::ServerContext*, const grpc::ByteBuffer* in,
               grpc::ByteBuffer* out) {
              *out = *in;
              return grpc::Status::OK;
            },
            this)));
  }
};

}  // namespace

void serve_grpc_echo() {
  EchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  announce("127.0.0.1:" + std::to_string(port));
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  server->Shutdown();
}

struct GrpcCaller::Stub {
  explicit Stub(const std::string& address)
      : channel(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                          without_limit())),
        method(kMethod, grpc::internal::RpcMethod::NORMAL_RPC, channel) {}

  static grpc::ChannelArguments without_limit() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return arguments;
  }

  std::shared_ptr<grpc::Channel> channel;
  grpc::internal::RpcMethod method;
};

GrpcCaller::GrpcCaller(const std::string& address) : stub_(std::make_unique<Stub>(address)) {}
GrpcCaller::~GrpcCaller() = default;

double GrpcCaller::echo_microseconds(size_t count, size_t size) {
  const std::vector<char> out(size, 1);
  std::vector<char> in(size);
  return median_microseconds(count, [&](size_t) {
    const grpc::Slice bytes(out.data(), size, grpc::Slice::STATIC_SLICE);
    const grpc::ByteBuffer request(&bytes, 1);
    grpc::ByteBuffer answer;
    grpc::ClientContext context;
    const grpc::Status status = grpc::internal::BlockingUnaryCall(
        stub_->channel.get(), stub_->method, &context, request, &answer);
    if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
    std::vector<grpc::Slice> parts;
    answer.Dump(&parts);
    char* to = in.data();
    for (const grpc::Slice& part : parts) {
      std::memcpy(to, part.begin(), part.size());
      to += part.size();
    }
  });
}

}  // namespace bench

#endif
