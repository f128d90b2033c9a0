// The function by which workers tell each other about references: sys.rref.session.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rref/session_message.h"

namespace weft::rref {

void register_reserved_functions();

SessionReply sys_rref_session(SessionMessage message);

}  // namespace weft::rref
