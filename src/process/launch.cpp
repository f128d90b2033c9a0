// launch(): starts the workers, or runs as a worker.
// SPDX-License-Identifier: BSD-3-Clause

#include "weft/launch.h"

#include <cxxabi.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>

#include <fmt/format.h>

#include "base/demangle.h"
#include "process/worker_group.h"

namespace weft {
namespace {

int number_in_environment(const char* name) {
  const std::string_view text = std::getenv(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw std::invalid_argument(fmt::format("{} is not a number of a worker: '{}'", name, text));
  }
  return value;
}

void print_failure(const std::string& text) { fmt::print(stderr, "weft: {}\n", text); }

int run_as_worker(const WorkerMain& run_worker) {
  const int rank = number_in_environment("RANK");
  const int world_size = number_in_environment("WORLD_SIZE");
  if (rank >= world_size) {
    throw std::invalid_argument(
        fmt::format("RANK {} is not below WORLD_SIZE {}", rank, world_size));
  }
  // Output to a pipe is buffered in blocks by default: lines would appear late, and the last lines
  // of a worker that is killed would be lost.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  try {
    return run_worker(rank, world_size);
  } catch (const std::exception& error) {
    print_failure(
        fmt::format("worker {} failed: {}: {}", rank, base::demangle(typeid(error)), error.what()));
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    print_failure(fmt::format("worker {} failed: {}", rank,
                              type ? base::demangle(*type) : "unknown exception"));
  }
  return 1;
}

std::string this_program() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length < 0) process::throw_errno("cannot read /proc/self/exe");
  return {path, static_cast<size_t>(length)};
}

int run_workers(int argc, char** argv, int workers) {
  process::WorkerGroupOptions options;
  options.command.program = this_program();
  options.command.arguments.assign(argv, argv + argc);
  options.workers = workers;
  options.prefix = process::LinePrefix::kAllButOutputOfRank0;
  // Flush the output of main() before the workers print.
  std::fflush(nullptr);
  return process::WorkerGroup(std::move(options)).run();
}

}  // namespace

int launch(int argc, char** argv, int workers, WorkerMain run_worker) {
  try {
    const bool is_worker = std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
    return is_worker ? run_as_worker(run_worker) : run_workers(argc, argv, workers);
  } catch (const std::exception& error) {
    print_failure(error.what());
    return 1;
  }
}

}  // namespace weft
