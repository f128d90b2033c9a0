// NCCL, NVIDIA's library for collectives between GPUs, which libtorch brings along.
//
// Its functions are looked up at run time, so Weft is built in the same way with and without NCCL.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace weft::collective {

/// The declarations of NCCL's interface that are used here. NCCL has kept them compatible since
/// version 2.14.
namespace nccl {

struct UniqueId {
  std::array<char, 128> bytes;
};
using Comm = struct ncclComm*;
using Stream = void*;

using Result = int;
constexpr Result kSuccess = 0, kSystemError = 2, kRemoteError = 6, kInProgress = 7;
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum ReduceOp : int { kSum = 0 };

/// The fields that version 2.14 has; later versions have more.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
};

}  // namespace nccl

struct NcclLibrary {
  nccl::Result (*get_version)(int*);
  nccl::Result (*get_unique_id)(nccl::UniqueId*);
  nccl::Result (*comm_init)(nccl::Comm*, int size, nccl::UniqueId, int rank, nccl::Config*);
  nccl::Result (*comm_error)(nccl::Comm, nccl::Result*);
  nccl::Result (*comm_abort)(nccl::Comm);
  const char* (*last_error)(nccl::Comm);
  const char* (*error_string)(nccl::Result);
  nccl::Result (*group_start)();
  nccl::Result (*group_end)();
  nccl::Result (*all_reduce)(const void*, void*, size_t, nccl::DataType, nccl::ReduceOp, nccl::Comm,
                             nccl::Stream);
  nccl::Result (*broadcast)(const void*, void*, size_t, nccl::DataType, int root, nccl::Comm,
                            nccl::Stream);
  nccl::Result (*reduce)(const void*, void*, size_t, nccl::DataType, nccl::ReduceOp, int root,
                         nccl::Comm, nccl::Stream);

  /// Null if the process has no NCCL, or one older than 2.14.
  static const NcclLibrary* get();
};

/// Where the GPU is plugged in, such as "0000:3b:00.0"; empty if CUDA's runtime cannot be asked.
std::string bus_of_gpu(int index);

}  // namespace weft::collective
