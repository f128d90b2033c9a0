// What libweft.so exports: everything else in it is hidden, and free to change.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#define WEFT_API [[gnu::visibility("default")]]
