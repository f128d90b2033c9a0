// Rows 7, 8 and 15: how many calls a connection carries, from one caller with many outstanding and
// from many callers with one each.
// SPDX-License-Identifier: BSD-3-Clause

#include <optional>
#include <string>
#include <vector>

#include "support/boxed_add.h"
#include "support/io_thread_rpc.h"
#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/weft_worker.h"
#include "support/zmq_anchor.h"

namespace bench {
namespace {

constexpr size_t kOutstanding = 1000;
constexpr size_t kPipelinedCalls = 200'000;
constexpr size_t kThreadedCalls = 20'000;
constexpr size_t kMostThreads = 8;

double pipelined_nops_per_second(size_t count) {
  return pipelined_rate(count, kOutstanding, [] { return weft::rpc_async<nop>("callee"); });
}

double microseconds_per_pipelined_add(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  return 1e6 /
         pipelined_rate(count, kOutstanding, [&] { return weft::rpc_async<add>("callee", a, b); });
}

template <size_t kThreads>
double threaded_nops_per_second(size_t count) {
  return calls_per_second(kThreads, count, [](size_t) { weft::rpc_sync<nop>("callee"); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"nops", pipelined_nops_per_second},
                              {"adds", microseconds_per_pipelined_add},
                              {"threads4", threaded_nops_per_second<4>},
                              {"threads8", threaded_nops_per_second<8>}});
}

void run_io_thread_server(const std::vector<std::string>&) {
  serve_io_thread_client(accept_one_caller());
}

void run_io_thread_caller(const std::vector<std::string>& arguments) {
  IoThreadClient client(connect_to_loopback(static_cast<uint16_t>(std::stoi(arguments.at(0)))),
                        kMostThreads);
  const auto call = [&](size_t thread) { client.call(thread); };
  answer_commands({
      {"threads4", [&](size_t count) { return calls_per_second(4, count, call); }},
      {"threads8", [&](size_t count) { return calls_per_second(8, count, call); }},
  });
}

void run_boxed_add(const std::vector<std::string>&) {
  answer_commands({{"adds", boxed_add_microseconds}});
}

#ifdef WEFT_HAVE_ZMQ
void run_zmq_router(const std::vector<std::string>&) { serve_zmq_router(); }

void run_zmq_dealer(const std::vector<std::string>& arguments) {
  ZmqDealer dealer(arguments.at(0));
  answer_commands({{"nops", [&](size_t count) { return dealer.echo_rate(count, kOutstanding); }}});
}

void measure_nops(const Settings& settings, std::optional<WorkerPair>& workers) {
  const size_t count = settings.scaled(kPipelinedCalls);
  AnchorPair zmq("zmq_router", "zmq_dealer");
  const auto series = take_turns(
      settings.rounds(),
      {[&] { return zmq.caller().measure("nops", count); }, asking(workers, "nops", count)});
  print({7,
         "async nop, 1,000 outstanding, one caller",
         "ZeroMQ dealer/router",
         "calls/s",
         at_least(1.0),
         series[0],
         series[1],
         {}});
}
#else
void run_zmq_router(const std::vector<std::string>&) {}
void run_zmq_dealer(const std::vector<std::string>&) {}

void measure_nops(const Settings&, std::optional<WorkerPair>&) {
  print_not_measured(7, "async nop, 1,000 outstanding, one caller",
                     "libzmq missing when this was built", Absence::kFailure);
}
#endif

void measure_adds(const Settings& settings, std::optional<WorkerPair>& workers) {
  const size_t count = settings.scaled(kPipelinedCalls);
  Child boxed({role_command("boxed_add", {}), {}, {}});
  const auto series = take_turns(settings.rounds(), {[&] { return boxed.measure("adds", count); },
                                                     asking(workers, "adds", count)});
  print({8,
         "async add of 4 floats, 1,000 outstanding, per call",
         "boxed at::add in process",
         "us",
         at_most(2.3),
         series[0],
         series[1],
         {}});
}

void measure_threads(const Settings& settings, std::optional<WorkerPair>& workers) {
  const size_t count = settings.scaled(kThreadedCalls);
  AnchorPair io_thread("io_thread_server", "io_thread_caller");
  const auto series =
      take_turns(settings.rounds(), {[&] { return io_thread.caller().measure("threads4", count); },
                                     asking(workers, "threads4", count),
                                     [&] { return io_thread.caller().measure("threads8", count); },
                                     asking(workers, "threads8", count)});
  print({15,
         "4 caller threads on one connection, sync nop",
         "dedicated IO thread",
         "calls/s",
         at_least(1.0),
         series[0],
         series[1],
         {}});
  print({15,
         "8 caller threads on one connection, sync nop",
         "dedicated IO thread",
         "calls/s",
         at_least(1.0),
         series[2],
         series[3],
         {}});
}

void measure(const Settings& settings) {
  print_facts();
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft("default", WorkerPair::Way::kTcp));
  if (settings.wants(7)) measure_nops(settings, workers);
  if (settings.wants(8)) measure_adds(settings, workers);
  if (settings.wants(15)) measure_threads(settings, workers);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {{"zmq_router", bench::run_zmq_router},
                             {"zmq_dealer", bench::run_zmq_dealer},
                             {"boxed_add", bench::run_boxed_add},
                             {"io_thread_server", bench::run_io_thread_server},
                             {"io_thread_caller", bench::run_io_thread_caller},
                             {"weft_callee", bench::run_weft_callee},
                             {"weft_caller", bench::run_caller}},
                            bench::measure);
}
