// Starting the workers of a program from inside that program.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>

#include "weft/export.h"

namespace weft {

/// The function that each worker runs; its result is the worker's exit status.
using WorkerMain = std::function<int(int rank, int world_size)>;

/// Runs `run_worker` in `workers` processes on this machine and returns the exit status for main():
/// 0 if all workers returned 0, else that of the first one that failed. The workers are this very
/// program, started again with the same arguments, so what main() does before launch() happens in
/// each of them too. When one worker fails the others are ended; none outlives this process.
///
/// In a process that already is a worker (RANK and WORLD_SIZE are in the environment, as `weft
/// run`, torchrun and launch() itself set them) it calls `run_worker` right here, and `workers` is
/// not looked at. An exception that escapes is printed with its type and gives 1.
///
/// Standard output of rank 0 is passed on as it is and rank 0 alone reads standard input, unless
/// that is a terminal; every other line is prefixed by the rank it comes from.
WEFT_API int launch(int argc, char** argv, int workers, WorkerMain run_worker);

}  // namespace weft
