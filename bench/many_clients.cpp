// Rows 28 to 31: one worker that many clients call, against a raw server with a thread for each
// connection.
//
// One process serves, in both ways, and tells the clients what to call and for how long.
// SPDX-License-Identifier: BSD-3-Clause

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <weft/rpc.h>

#include "support/members.h"
#include "support/program.h"
#include "support/raw_tcp.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/system_error.h"

namespace bench {
namespace {

constexpr size_t kFloats = size_t{1} << 18;  // 1 MiB
constexpr size_t kInFlight = 512;            // of a thread that does not wait for each call
constexpr size_t kIssuedTogether = 64;

void nop() {}
at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a + b; }
void compute(int64_t microseconds) {
  const auto end = Clock::now() + std::chrono::microseconds(microseconds);
  while (Clock::now() < end) {
  }
}

std::string name_of(size_t rank) { return "w" + std::to_string(rank); }

// --- the raw server ----------------------------------------------------------------------------

// What a client sends, and gets back when it is done. Twice kFloats floats follow if `adds`, and
// kFloats follow the answer.
struct Request {
  int64_t microseconds = 0;
  int64_t adds = 0;
  int64_t unused[2] = {};
};

void serve_one(const Socket& caller) {
  std::vector<float> given, sum;
  for (Request request; receive_all(caller, &request, sizeof request);) {
    if (request.adds) {
      given.resize(2 * kFloats);
      sum.resize(kFloats);
      if (!receive_all(caller, given.data(), given.size() * sizeof(float))) return;
      for (size_t i = 0; i < kFloats; ++i) sum[i] = given[i] + given[kFloats + i];
    }
    if (request.microseconds > 0) compute(request.microseconds);
    send_all(caller, &request, sizeof request);
    if (request.adds) send_all(caller, sum.data(), sum.size() * sizeof(float));
  }
}

// Listens on a free port of the loopback interface, which it returns, and serves for ever.
uint16_t start_raw_server() {
  const int listener = check_system(socket(AF_INET, SOCK_STREAM, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  check_system(bind(listener, reinterpret_cast<sockaddr*>(&address), size), "bind");
  check_system(listen(listener, 256), "listen");
  check_system(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  std::thread([listener] {
    for (;;) {
      const int caller = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (caller < 0 && errno != EINTR && errno != ECONNABORTED) {
        std::cerr << "the raw server cannot accept: " << std::strerror(errno) << std::endl;
        _exit(1);
      }
      if (caller < 0) continue;
      const int on = 1;
      setsockopt(caller, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      std::thread([caller] { serve_one(Socket(caller)); }).detach();
    }
  }).detach();
  return ntohs(address.sin_port);
}

// --- a client ----------------------------------------------------------------------------------

struct Load {
  enum class Call : uint8_t { kNop, kAsyncNop, kAdd, kCompute };
  Call call = Call::kNop;
  uint16_t raw_port = 0;  // zero: calls of Weft's
  uint64_t threads = 1;
  int64_t microseconds = 0;  // kCompute
  int64_t milliseconds = 0;  // for so long
};

struct Offered {
  double calls_per_second = 0;
  double p99_microseconds = 0;
};

// Calls `once` until the time is up; the time that each call took.
template <typename Once>
std::vector<double> call_until(Clock::time_point end, const Once& once) {
  std::vector<double> times;
  for (auto begin = Clock::now(); begin < end; begin = Clock::now()) {
    once();
    times.push_back(microseconds_since(begin));
  }
  return times;
}

std::vector<double> call_raw(const Load& load, Clock::time_point end) {
  const Socket server = connect_to_loopback(load.raw_port);
  Request request{load.microseconds, load.call == Load::Call::kAdd, {}};
  const std::vector<float> given(request.adds ? 2 * kFloats : 0, 1);
  std::vector<float> sum(request.adds ? kFloats : 0);
  const auto receive = [&](void* into, size_t size) {
    if (!receive_all(server, into, size)) throw std::runtime_error("the raw server is gone");
  };
  return call_until(end, [&] {
    send_all(server, &request, sizeof request);
    if (request.adds) send_all(server, given.data(), given.size() * sizeof(float));
    receive(&request, sizeof request);
    if (request.adds) receive(sum.data(), sum.size() * sizeof(float));
  });
}

std::vector<double> call_weft(const Load& load, Clock::time_point end) {
  const std::string server = name_of(0);
  switch (load.call) {
    case Load::Call::kNop:
      return call_until(end, [&] { weft::rpc_sync<nop>(server); });
    case Load::Call::kCompute:
      return call_until(end, [&] { weft::rpc_sync<compute>(server, load.microseconds); });
    case Load::Call::kAdd: {
      const at::Tensor ones = at::ones({static_cast<int64_t>(kFloats)});
      return call_until(end, [&] { weft::rpc_sync<add>(server, ones, ones); });
    }
    case Load::Call::kAsyncNop:
      break;
  }
  std::vector<double> times;
  std::deque<weft::Future<void>> in_flight;
  const auto wait_for_first = [&] {
    in_flight.front().wait();
    in_flight.pop_front();
    times.push_back(0);  // only their number counts
  };
  while (Clock::now() < end) {
    for (size_t i = 0; i < kIssuedTogether; ++i) in_flight.push_back(weft::rpc_async<nop>(server));
    while (in_flight.size() > kInFlight) wait_for_first();
  }
  while (!in_flight.empty()) wait_for_first();
  return times;
}

Offered offer(const Load& load) {
  std::vector<std::vector<double>> times(load.threads);
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::milliseconds(load.milliseconds);
  {
    std::vector<std::jthread> threads;
    for (auto& its : times) {
      threads.emplace_back(
          [&] { its = load.raw_port != 0 ? call_raw(load, end) : call_weft(load, end); });
    }
  }
  const double took = microseconds_since(begin);
  std::vector<double> all;
  for (const auto& its : times) all.insert(all.end(), its.begin(), its.end());
  std::sort(all.begin(), all.end());
  return {1e6 * static_cast<double>(all.size()) / took,
          all.empty() ? 0 : all[all.size() * 99 / 100]};
}

// --- the worker that serves --------------------------------------------------------------------

// The clients from `first` on, all at once.
std::vector<weft::Future<Offered>> begin(size_t first, size_t clients, const Load& load) {
  std::vector<weft::Future<Offered>> offered;
  for (size_t i = first; i < first + clients; ++i) {
    offered.push_back(weft::rpc_async<offer>({name_of(i), weft::Timeout::zero()}, load));
  }
  return offered;
}

double total_rate(size_t clients, const Load& load) {
  double sum = 0;
  for (auto& each : begin(1, clients, load)) sum += each.wait().calls_per_second;
  return sum;
}

// The worst p99 of clients that call functions of 5 us, beside as many that call functions of 5 ms.
double p99_of_short(size_t clients, int64_t milliseconds, bool with_long) {
  Load load{.call = Load::Call::kCompute, .microseconds = 5000, .milliseconds = milliseconds};
  auto others = begin(1 + clients, with_long ? clients : 0, load);
  load.microseconds = 5;
  double worst = 0;
  for (auto& each : begin(1, clients, load)) worst = std::max(worst, each.wait().p99_microseconds);
  for (auto& each : others) each.wait();
  return worst;
}

// A command is "WAY CALL CLIENTS THREADS MICROSECONDS", and how long in milliseconds.
void answer_orders() {
  const std::map<std::string, Load::Call> calls{{"nop", Load::Call::kNop},
                                                {"async", Load::Call::kAsyncNop},
                                                {"add", Load::Call::kAdd},
                                                {"compute", Load::Call::kCompute}};
  const uint16_t raw_port = start_raw_server();
  announce("ready");
  std::string way, call;
  size_t clients = 0;
  for (Load load; std::cin >> way >> call >> clients >> load.threads >> load.microseconds >>
                  load.milliseconds;) {
    if (call == "mix") {
      announce(std::to_string(p99_of_short(clients, load.milliseconds, way == "beside")));
      continue;
    }
    load.call = calls.at(call);
    load.raw_port = way == "raw" ? raw_port : 0;
    announce(std::to_string(total_rate(clients, load)));
  }
}

void be_worker(size_t rank, size_t workers, const std::string& rendezvous) {
  at::set_num_threads(1);
  weft::Options options;
  options.rank = static_cast<int>(rank);
  options.world_size = static_cast<int>(workers);
  options.init_method = rendezvous;
  weft::expose<nop>();
  weft::expose<add>();
  weft::expose<compute>();
  weft::expose<offer>();
  weft::init_rpc(name_of(rank), options);
  if (rank == 0) answer_orders();
  weft::barrier({}, std::chrono::minutes(15));  // the clients serve until then
  weft::shutdown();
}

// --- the rows ----------------------------------------------------------------------------------

class Table {
 public:
  explicit Table(const Settings& settings)
      : settings_(settings),
        most_(settings.quick ? 2 : 8),
        group_(Members::of_role("workers", 1 + most_)) {}

  void print_all() {
    if (settings_.wants(28)) print_nops();
    if (settings_.wants(29)) print_computing();
    if (settings_.wants(30)) print_adds();
    if (settings_.wants(31)) print_async_and_mix();
  }

 private:
  struct Shape {
    size_t clients, threads;
    std::string text() const {
      return std::to_string(clients) + " clients x " + std::to_string(threads) + " threads";
    }
  };
  static constexpr size_t kMilliseconds = 400;

  Measurement measuring(const std::string& way, const std::string& call, const Shape& shape,
                        int microseconds = 0) {
    std::ostringstream what;
    what << way << ' ' << call << ' ' << shape.clients << ' ' << shape.threads << ' '
         << microseconds;
    return group_.measuring(what.str(), settings_.scaled(kMilliseconds));
  }
  void compare(int row, const std::string& what, const std::string& anchor, const Bar& bar,
               const Measurement& of_anchor, const Measurement& of_weft,
               const std::string& unit = "calls/s") {
    const auto series = take_turns(settings_.rounds(),
                                   {of_anchor, settings_.anchors_only ? Measurement() : of_weft});
    print({row, what, anchor, unit, bar, series[0], series[1], ""});
  }
  void compare_with_raw(int row, const std::string& what, const Bar& bar, const std::string& call,
                        const Shape& shape, int microseconds = 0) {
    compare(row, what + ", " + shape.text(), "raw TCP, a thread each", bar,
            measuring("raw", call, shape, microseconds),
            measuring("weft", call, shape, microseconds));
  }

  void print_nops() {
    for (size_t clients = 1; clients <= most_; clients *= 2) {
      compare_with_raw(28, "sync nop", at_least(0.8), "nop", {clients, 1});
      compare_with_raw(28, "sync nop", at_least(0.5), "nop", {clients, 4});
    }
  }
  void print_computing() {
    const std::map<int, double> bars{{10, 0.6}, {50, 0.85}, {200, 0.9}, {2000, 0.9}};
    for (const auto& [microseconds, bar] : bars) {
      compare_with_raw(29, "function of " + std::to_string(microseconds) + " us", at_least(bar),
                       "compute", {most_, 4}, microseconds);
    }
  }
  void print_adds() {
    const Shape one{most_, 1}, four{most_, 4};
    compare_with_raw(30, "add of 1 MiB", at_least(0.7), "add", one);
    compare_with_raw(30, "add of 1 MiB", at_least(0.7), "add", four);
    compare(30, "add of 1 MiB, " + four.text(), "with one thread each", at_least(0.95),
            measuring("weft", "add", one), measuring("weft", "add", four));
  }
  void print_async_and_mix() {
    const Shape alone{1, 1}, threads{1, 4}, clients{most_, 1};
    compare(31, "async nop, " + threads.text(), "one client, one thread", at_least(1),
            measuring("weft", "async", alone), measuring("weft", "async", threads));
    compare(31, "async nop, " + clients.text(), "one client, one thread", at_least(3),
            measuring("weft", "async", alone), measuring("weft", "async", clients));
    const Shape half{most_ / 2, 1};
    compare(31, "p99 of functions of 5 us beside functions of 5 ms", "without those", at_most(10),
            measuring("alone", "mix", half), measuring("beside", "mix", half), "us");
  }

  const Settings& settings_;
  const size_t most_;
  Members group_;
};

void measure(const Settings& settings) {
  print_facts();
  if (!settings.quick && std::thread::hardware_concurrency() < 8) {
    for (const int row : {28, 29, 30, 31}) {
      if (settings.wants(row))
        print_not_measured(row, "one worker, many clients", "it takes 8 processors",
                           Absence::kAllowed);
    }
    return;
  }
  Table(settings).print_all();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const auto workers = [](const std::vector<std::string>& arguments) {
    bench::run_members(arguments, bench::be_worker);
  };
  return bench::run_program(argc, argv, {{"workers", workers}}, bench::measure);
}
