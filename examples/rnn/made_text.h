// English-like text for those who have none at hand.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// Sentences of a small grammar until there are `size` bytes.
std::string make_text(size_t size, uint64_t seed);
