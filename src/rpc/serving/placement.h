// Where a call runs: on the thread that read it, or on another. Pure functions.
//
// Running a call on the thread that read it costs nothing. It is right for short functions, however
// many there are, and for the last call that is there. While a longer function runs, what follows
// it would wait although other CPUs are idle: so of several calls the longer ones wait in the
// backlog for other threads, and only the last runs here.
//
// | function usually takes | further calls             | runs                                 |
// | ---                    | ---                       | ---                                  |
// | less than 5 us         | any                       | here                                 |
// | 5 us to 20 us          | have come                 | on another thread                    |
// |                        | else                      | here                                 |
// | 20 us to 500 us        | have come, or are running | on another thread                    |
// |                        | else                      | here                                 |
// | more than 500 us       | have come, or are running | on another thread                    |
// |                        | else                      | here, after the lead was given up    |
//
// If the process may use no more than two CPUs, or if the function makes an object, 20 us take the
// place of 5 us. With two CPUs the thread that reads and its caller have both, and a thread that is
// woken takes one from them. And what comes after a creation usually needs the object: on another
// thread it would only wait for this one.
//
// Calls that are running tell that their caller has several threads: its next call comes while this
// one runs, and would wait. Weft's own calls, and those whose function has returned a future, tell
// nothing.
//
// Whether a call of another connection has come is found out by a system call, and waking another
// thread takes a CPU from someone if all have work. So this is asked for functions that take more
// than 20 us, and for those that take more than 100 us where more than half the CPUs run functions.
//
// If all slots (below) are in use, no other thread could run the call sooner: then a function that
// takes less than 500 us runs here in any case, unless such functions have taken this thread a
// millisecond since it last looked at its other connections.
//
// A function that is known to be short needs no slot (`Options::handler_threads`). A call of
// another of the user's functions for which there is no slot runs later, on another thread. The
// thread that read a call decodes its arguments in any case, in the order in which the calls came,
// unless that takes long (kLongDecode).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstddef>

#include "base/clock.h"
#include "weft/detail/function_entry.h"

namespace weft::rpc {

/// Waking another thread costs about as much as such a function.
inline constexpr base::Duration kWorthAnotherThread = std::chrono::microseconds(5);
/// CPUs up to which it costs more.
inline constexpr size_t kFewCpus = 2;
/// While such a function runs, several calls of the same caller can come.
inline constexpr base::Duration kWorthReadingOn = std::chrono::microseconds(20);
/// Worth a system call to find out whether another connection's call has come.
inline constexpr base::Duration kWorthALook = std::chrono::microseconds(20);
/// The same where more than half the CPUs run functions.
inline constexpr base::Duration kWorthALookWhenBusy = std::chrono::microseconds(100);
/// Waking another thread to lead costs a tenth of such a function.
inline constexpr base::Duration kWorthAHandOver = std::chrono::microseconds(500);
/// Bytes of arguments, without their tensors, that take about a millisecond to decode.
inline constexpr size_t kLongDecode = 1 << 20;

enum class Placement { kHere, kHereWithoutLead, kElsewhere };

struct Others {
  bool have_come = false;    // more bytes, on this or another connection of the desk
  bool are_running = false;  // further calls of this connection
  bool have_slots = true;    // another thread would have a slot
};

/// `usual`: what the function has taken lately; 0 if it has never run.
inline bool needs_slot(base::Duration usual) {
  return usual == base::Duration(0) || usual >= kWorthAnotherThread;
}
/// `running`: functions that use one of so many CPUs, with the thread that asks.
inline bool worth_a_look(base::Duration usual, size_t running, size_t cpus) {
  return usual >= (2 * running > cpus ? kWorthALookWhenBusy : kWorthALook);
}
/// What a function must take for another thread to be worth it if further calls have come.
inline base::Duration worth_another_thread(size_t cpus, detail::Makes makes) {
  const bool costs_more = cpus <= kFewCpus || makes == detail::Makes::kObject;
  return costs_more ? kWorthReadingOn : kWorthAnotherThread;
}
/// `worth`: worth_another_thread().
inline Placement place(base::Duration usual, base::Duration worth, Others others) {
  if (usual < worth) return Placement::kHere;
  if (!others.have_slots && usual < kWorthAHandOver) return Placement::kHere;
  if (others.have_come) return Placement::kElsewhere;
  if (usual < kWorthReadingOn) return Placement::kHere;
  if (others.are_running) return Placement::kElsewhere;
  return usual < kWorthAHandOver ? Placement::kHere : Placement::kHereWithoutLead;
}

}  // namespace weft::rpc
