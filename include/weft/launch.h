// Starting the workers of a program from inside that program.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>

#include "weft/export.h"

namespace weft {

/// The function that each worker runs; its result is the worker's exit status.
using WorkerMain = std::function<int(int rank, int world_size)>;

/// Runs `run_worker` in `workers` processes on this machine and returns the exit status for main():
/// 0 if all workers returned 0, else that of the first one that failed. The workers are this
/// program, started again with the same arguments, so each of them also runs what main() does
/// before launch(). When one worker fails, the others are ended; none outlives this process.
///
/// In a process that already is a worker (RANK and WORLD_SIZE are in the environment, as `weft
/// run`, torchrun and launch() itself set them) launch() calls `run_worker` in this process and
/// ignores `workers`. If `run_worker` throws, launch() prints the exception and its type and
/// returns 1.
///
/// Standard output of rank 0 is passed on unchanged; every other line is prefixed with the rank
/// that wrote it. Only rank 0 can read standard input, and not even that if it is a terminal.
WEFT_API int launch(int argc, char** argv, int workers, WorkerMain run_worker);

}  // namespace weft
