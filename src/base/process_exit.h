// For a process that ends by exit() on another thread than main's.
//
// exit() stops the default agent. A main thread that waits inside the agent (in shutdown() or for a
// call) is thereby released. If it then returned from main, a second thread would destroy static
// objects.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft::base {

/// To be called when exit() has begun, on its thread.
void note_exit() noexcept;
/// On the main thread, does not return if exit() runs on another thread: the process is about to
/// end.
void stay_if_process_exits() noexcept;

}  // namespace weft::base
