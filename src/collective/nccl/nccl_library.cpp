// SPDX-License-Identifier: BSD-3-Clause
#include "collective/nccl/nccl_library.h"

#include <dlfcn.h>

#include <optional>

namespace weft::collective {

namespace {

constexpr int kOldestVersion = 21400;

template <typename F>
bool find_symbol(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

std::optional<NcclLibrary> load() {
  NcclLibrary found{};
  const bool complete = find_symbol(found.get_version, "ncclGetVersion") &&
                        find_symbol(found.get_unique_id, "ncclGetUniqueId") &&
                        find_symbol(found.comm_init, "ncclCommInitRankConfig") &&
                        find_symbol(found.comm_error, "ncclCommGetAsyncError") &&
                        find_symbol(found.comm_abort, "ncclCommAbort") &&
                        find_symbol(found.last_error, "ncclGetLastError") &&
                        find_symbol(found.error_string, "ncclGetErrorString") &&
                        find_symbol(found.group_start, "ncclGroupStart") &&
                        find_symbol(found.group_end, "ncclGroupEnd") &&
                        find_symbol(found.all_reduce, "ncclAllReduce") &&
                        find_symbol(found.broadcast, "ncclBroadcast") &&
                        find_symbol(found.reduce, "ncclReduce");
  int version = 0;
  if (!complete || found.get_version(&version) != nccl::kSuccess || version < kOldestVersion) {
    return std::nullopt;
  }
  return found;
}

}  // namespace

const NcclLibrary* NcclLibrary::get() {
  static const std::optional<NcclLibrary> library = load();
  return library ? &*library : nullptr;
}

std::string bus_of_gpu(int index) {
  int (*get_bus)(char*, int, int) = nullptr;
  std::array<char, 64> bus{};
  if (!find_symbol(get_bus, "cudaDeviceGetPCIBusId")) return {};
  if (get_bus(bus.data(), static_cast<int>(bus.size()) - 1, index) != 0) return {};
  return bus.data();
}

}  // namespace weft::collective
