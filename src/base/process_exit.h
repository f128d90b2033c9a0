// A process that ends by exit() on another thread than main's.
//
// exit() stops the default agent, so a main thread that waits for it goes on. If it then returned
// from main, static objects would be destroyed a second time, by a second thread.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft::base {

/// exit() has begun on this thread.
void note_exit() noexcept;
/// On the main thread, does not return once exit() runs on another: the process is about to end.
void stay_if_process_exits() noexcept;

}  // namespace weft::base
