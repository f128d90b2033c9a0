// SPDX-License-Identifier: BSD-3-Clause
#include "usage.h"

#include <dirent.h>
#include <malloc.h>

#include <cstdio>
#include <cstring>

namespace weft::soak {

namespace {

uint64_t entries_of(const char* path) {
  uint64_t count = 0;
  DIR* const directory = ::opendir(path);
  if (!directory) return 0;
  while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.';
  ::closedir(directory);
  return count;
}

// A line of /proc/self/status, such as "VmRSS".
uint64_t status_kib(const char* name) {
  FILE* const file = std::fopen("/proc/self/status", "r");
  if (!file) return 0;
  unsigned long long kib = 0;
  char line[256];
  const size_t length = std::strlen(name);
  while (std::fgets(line, sizeof line, file)) {
    if (std::strncmp(line, name, length) != 0 || line[length] != ':') continue;
    std::sscanf(line + length + 1, "%llu", &kib);
    break;
  }
  std::fclose(file);
  return kib;
}

}  // namespace

Usage usage_now() {
  const struct mallinfo2 heap = ::mallinfo2();
  return {status_kib("VmRSS"),
          status_kib("RssFile"),
          (heap.uordblks + heap.hblkhd) / 1024,
          (heap.arena + heap.hblkhd) / 1024,
          entries_of("/proc/self/fd") - 1,
          entries_of("/proc/self/task")};
}

}  // namespace weft::soak
