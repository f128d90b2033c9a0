// Rows 4, 5, 6, 9, 10 and 12: calls and tensors between two processes that share memory.
// SPDX-License-Identifier: BSD-3-Clause

#include <sys/resource.h>

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/boxed_add.h"
#include "support/pair.h"
#include "support/program.h"
#include "support/raw_shm.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kCalls = 2000;
constexpr size_t kAdds = 20'000;
constexpr char kSpin[] = "100";
constexpr char kNoSpin[] = "0";
using Way = WorkerPair::Way;

// --- small calls -----------------------------------------------------------------------------

double nop_microseconds(size_t count) {
  return median_microseconds(count, [](size_t) { weft::rpc_sync<nop>("callee"); });
}

double add_microseconds(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<add>("callee", a, b); });
}

std::vector<double> each(const std::vector<double>& a, const std::vector<double>& b, double times) {
  std::vector<double> sums;
  for (size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + times * b[i]);
  return sums;
}

void measure_small(const Settings& settings) {
  const size_t count = settings.scaled(kCalls);
  AnchorPair raw("shm_server", "shm_caller");
  Child boxed({role_command("boxed_add", {}), {}, {}});
  std::optional<WorkerPair> spinning, sleeping;
  if (!settings.anchors_only) {
    spinning.emplace(WorkerPair::weft(kSpin, Way::kNearest));
    sleeping.emplace(WorkerPair::weft(kNoSpin, Way::kNearest));
  }
  const auto series =
      take_turns(settings.rounds(), {[&] { return raw.caller().measure("polling", 10 * count); },
                                     [&] { return boxed.measure("adds", settings.scaled(kAdds)); },
                                     asking(spinning, "nop", count), asking(spinning, "add", count),
                                     [&] { return raw.caller().measure("sleeping", count); },
                                     asking(sleeping, "nop", count)});
  if (settings.wants(4)) {
    print({4,
           "sync nop through shared memory, spinning",
           "raw shared memory, polling",
           "us",
           at_most(5),
           series[0],
           series[2],
           {}});
  }
  if (settings.wants(5)) {
    print({5,
           "sync add of 4 floats through shared memory, spinning",
           "raw shared memory, polling + 3.5 boxed at::add",
           "us",
           at_most(1),
           each(series[0], series[1], 3.5),
           series[3],
           {}});
  }
  if (settings.wants(6)) {
    print({6,
           "sync nop through shared memory, no spinning",
           "shared memory + eventfd in epoll",
           "us",
           at_most(1.15),
           series[4],
           series[5],
           {}});
  }
}

// --- tensors ---------------------------------------------------------------------------------

struct Size {
  size_t mebibytes;
  size_t calls;  // per round
};
constexpr std::array<Size, 2> kSizes{{{16, 20}, {64, 6}}};

at::Tensor floats_of(size_t mebibytes) { return at::ones({static_cast<int64_t>(mebibytes << 18)}); }
at::Tensor borrowed_neg(weft::Borrowed<at::Tensor> a) { return a.get().neg(); }

int64_t faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

double copy_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  const at::Tensor to = at::zeros_like(x);
  return median_microseconds(
      count, [&](size_t) { std::memcpy(to.data_ptr(), x.data_ptr(), mebibytes << 20); });
}

double warm_neg_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  at::Tensor out = at::neg(x);
  return median_microseconds(count, [&](size_t) { at::neg_out(out, x); });
}

// The first calls bring the pages.
template <auto kFunction>
double call_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  for (int i = 0; i < 3; ++i) {
    TORCH_CHECK(at::equal(weft::rpc_sync<kFunction>("callee", x), x.neg()), "callee cannot negate");
  }
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<kFunction>("callee", x); });
}

double faults_per_call(size_t count) {
  const at::Tensor x = floats_of(64);
  for (int i = 0; i < 5; ++i) weft::rpc_sync<neg>("callee", x);
  const int64_t before = faults() + weft::rpc_sync<faults>("callee");
  for (size_t i = 0; i < count; ++i) weft::rpc_sync<neg>("callee", x);
  const int64_t after = faults() + weft::rpc_sync<faults>("callee");
  return static_cast<double>(after - before) / static_cast<double>(count);
}

std::string named(const char* what, const Size& size) {
  return what + std::to_string(size.mebibytes);
}

std::string rounded(double value) { return std::to_string(static_cast<int64_t>(value + 0.5)); }

void run_local(const std::vector<std::string>&) {
  std::map<std::string, Command> commands;
  for (const Size& size : kSizes) {
    const size_t mebibytes = size.mebibytes;
    commands[named("copy", size)] = [=](size_t n) { return copy_microseconds(mebibytes, n); };
    commands[named("neg", size)] = [=](size_t n) { return warm_neg_microseconds(mebibytes, n); };
  }
  answer_commands(commands);
}

void measure_size(const Settings& settings, const Size& size, Child& local,
                  std::optional<WorkerPair>& in_memory, std::optional<WorkerPair>& usual) {
  const size_t count = settings.scaled(size.calls);
  const auto series =
      take_turns(settings.rounds(), {[&] { return local.measure(named("copy", size), count); },
                                     [&] { return local.measure(named("neg", size), count); },
                                     asking(in_memory, named("neg", size), count),
                                     asking(in_memory, named("borrowed", size), count),
                                     asking(usual, named("neg", size), count)});
  const std::string which = "neg of " + std::to_string(size.mebibytes) + " MiB, same host";
  if (settings.wants(9)) {
    print({9, which, "memcpy + at::neg, warm", "us", at_most(1.3), each(series[0], series[1], 1),
           series[2], "without use_shared_allocator() " + rounded(median(series[4])) + " us"});
  }
  if (settings.wants(10)) {
    print(
        {10, which + ", borrowed", "at::neg, warm", "us", at_most(1.2), series[1], series[3], {}});
  }
}

void measure_large(const Settings& settings) {
  Child local({role_command("local", {}), {}, {}});
  std::optional<WorkerPair> in_memory, usual;
  if (!settings.anchors_only) {
    in_memory.emplace(WorkerPair::weft("default", Way::kMemory));
    usual.emplace(WorkerPair::weft("default", Way::kNearest));
  }
  for (const Size& size : kSizes) measure_size(settings, size, local, in_memory, usual);
  if (!settings.wants(12) || !in_memory) return;
  const auto series = take_turns(settings.rounds(), {asking(in_memory, "faults", 6)});
  print({12,
         "minor page faults per neg of 64 MiB, both sides",
         "none",
         "faults",
         value_at_most(16),
         {},
         series[0],
         {}});
}

void run_caller(const std::vector<std::string>& arguments) {
  std::map<std::string, Command> commands{
      {"nop", nop_microseconds}, {"add", add_microseconds}, {"faults", faults_per_call}};
  for (const Size& size : kSizes) {
    const size_t mebibytes = size.mebibytes;
    commands[named("neg", size)] = [=](size_t n) { return call_microseconds<neg>(mebibytes, n); };
    commands[named("borrowed", size)] = [=](size_t n) {
      return call_microseconds<borrowed_neg>(mebibytes, n);
    };
  }
  run_weft_caller(arguments, commands);
}

void measure(const Settings& settings) {
  print_facts();
  if (settings.wants(4) || settings.wants(5) || settings.wants(6)) measure_small(settings);
  if (settings.wants(9) || settings.wants(10) || settings.wants(12)) measure_large(settings);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {{"shm_server", bench::run_shm_server},
                             {"shm_caller", bench::run_shm_caller},
                             {"boxed_add",
                              [](const std::vector<std::string>&) {
                                bench::answer_commands({{"adds", bench::boxed_add_microseconds}});
                              }},
                             {"local", bench::run_local},
                             {"weft_callee", bench::run_weft_callee},
                             {"weft_caller", bench::run_caller}},
                            bench::measure);
}
