// Borrowed arguments of weft/same_host.h.
// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "weft/error.h"
#include "weft/same_host.h"

namespace weft::detail {

void BorrowedArguments::watch(const at::Tensor& tensor) {
  if (tensor.defined()) watched_.push_back({tensor, static_cast<uint64_t>(tensor._version())});
}

void BorrowedArguments::check(const std::string& function) const {
  for (const auto& [tensor, version] : watched_) {
    const char* what = nullptr;
    if (static_cast<uint64_t>(tensor._version()) != version) {
      what = "has changed";
    } else if (tensor.use_count() > 1 || tensor.storage().use_count() > 1) {
      what = "has kept, returned or recorded for a backward pass";
    }
    if (!what) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} {} a tensor that it borrows and that is its caller's; it takes "
                            "at::Tensor in place of weft::Borrowed<at::Tensor>, or a clone()",
                            function, what));
  }
}

}  // namespace weft::detail
