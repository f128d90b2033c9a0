// Marks the names that libweft.so exports; all others are hidden, and free to change.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#define WEFT_API [[gnu::visibility("default")]]
