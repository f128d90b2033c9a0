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

uint64_t resident_kib() {
  FILE* const file = std::fopen("/proc/self/status", "r");
  if (!file) return 0;
  unsigned long long kib = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file)) {
    if (std::sscanf(line, "VmRSS: %llu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib;
}

}  // namespace

Usage usage_now() {
  const struct mallinfo2 heap = ::mallinfo2();
  return {resident_kib(), (heap.uordblks + heap.hblkhd) / 1024, entries_of("/proc/self/fd") - 1,
          entries_of("/proc/self/task")};
}

}  // namespace weft::soak
