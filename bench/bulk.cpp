// Row 11: a call that moves a large tensor there and another one back.
// SPDX-License-Identifier: BSD-3-Clause

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/pair.h"
#include "support/program.h"
#include "support/raw_tcp.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

struct Size {
  size_t mebibytes;
  size_t calls;  // per round
};
constexpr std::array<Size, 3> kSizes{{{1, 100}, {16, 10}, {64, 3}}};

at::Tensor floats_of(size_t mebibytes) { return at::ones({static_cast<int64_t>(mebibytes << 18)}); }

double neg_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  return median_microseconds(count, [&](size_t) { at::neg(x); });
}

double warm_neg_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  at::Tensor out = at::neg(x);
  return median_microseconds(count, [&](size_t) { at::neg_out(out, x); });
}

double call_microseconds(size_t mebibytes, size_t count) {
  const at::Tensor x = floats_of(mebibytes);
  TORCH_CHECK(at::equal(weft::rpc_sync<neg>("callee", x), x.neg()), "callee cannot negate");
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<neg>("callee", x); });
}

std::string named(const char* what, const Size& size) {
  return what + std::to_string(size.mebibytes);
}

void run_echo_server(const std::vector<std::string>&) { serve_echoes(accept_one_caller()); }

void run_echo_caller(const std::vector<std::string>& arguments) {
  const Socket socket = connect_to_loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
  std::map<std::string, Command> commands;
  for (const Size& size : kSizes) {
    const size_t mebibytes = size.mebibytes;
    commands[named("echo", size)] = [&socket, mebibytes](size_t n) {
      return echo(socket, n, mebibytes << 20);
    };
    commands[named("neg", size)] = [mebibytes](size_t n) { return neg_microseconds(mebibytes, n); };
    commands[named("warm_neg", size)] = [mebibytes](size_t n) {
      return warm_neg_microseconds(mebibytes, n);
    };
  }
  answer_commands(commands);
}

void run_caller(const std::vector<std::string>& arguments) {
  std::map<std::string, Command> commands;
  for (const Size& size : kSizes) {
    commands[named("neg", size)] = [&size](size_t n) {
      return call_microseconds(size.mebibytes, n);
    };
  }
  run_weft_caller(arguments, commands);
}

std::vector<double> sums(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sums;
  for (size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + b[i]);
  return sums;
}

std::string rounded(double value) { return std::to_string(static_cast<int64_t>(value + 0.5)); }

void measure_size(const Settings& settings, const Size& size, AnchorPair& raw,
                  std::optional<WorkerPair>& workers) {
  const size_t count = settings.scaled(size.calls);
  const auto ask_raw = [&](const char* what) {
    return
        [&raw, command = named(what, size), count] { return raw.caller().measure(command, count); };
  };
  const auto series =
      take_turns(settings.rounds(), {ask_raw("echo"), ask_raw("neg"), ask_raw("warm_neg"),
                                     asking(workers, named("neg", size), count)});

  print({11, "neg of " + std::to_string(size.mebibytes) + " MiB over TCP",
         "raw TCP round trip + at::neg", "us", at_most(1.15), sums(series[0], series[1]), series[3],
         "anchor: round trip " + rounded(median(series[0])) + " us, at::neg " +
             rounded(median(series[1])) + " us (" + rounded(median(series[2])) +
             " us into a warm result, not counted)"});
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(11)) return;
  AnchorPair raw("echo_server", "echo_caller");
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft("default", WorkerPair::Way::kTcp));
  for (const Size& size : kSizes) measure_size(settings, size, raw, workers);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {{"echo_server", bench::run_echo_server},
                             {"echo_caller", bench::run_echo_caller},
                             {"weft_callee", bench::run_weft_callee},
                             {"weft_caller", bench::run_caller}},
                            bench::measure);
}
