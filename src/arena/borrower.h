// A process that borrows memory of this one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include "transport/private_descriptor.h"

namespace weft::arena {

class Borrower {
 public:
  /// `process` is alive, or was a moment ago.
  explicit Borrower(pid_t process);

  pid_t process() const { return process_; }
  /// Once true it stays true, even when another process has got the number.
  bool is_dead();

 private:
  const pid_t process_;
  transport::PrivateDescriptor handle_;  // none on systems without them
  bool dead_ = false;
};

}  // namespace weft::arena
