// What a process uses: memory, descriptors, and how long its calls take.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>

namespace weft::soak {

struct Usage {
  uint64_t resident_kib = 0;
  uint64_t file_kib = 0;        // of it, pages of programs and libraries
  uint64_t malloc_kib = 0;      // in use
  uint64_t malloc_has_kib = 0;  // address space of all arenas; much of it may be given back
  uint64_t descriptors = 0;
  uint64_t threads = 0;
};
Usage usage_now();

}  // namespace weft::soak
