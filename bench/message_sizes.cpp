// Row 35: how long a tensor takes there and back, against its size, for everything that can carry
// it: Weft over TCP and through shared memory, torch RPC, gRPC, ZeroMQ and the raw limits.
// SPDX-License-Identifier: BSD-3-Clause

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/grpc_anchor.h"
#include "support/pair.h"
#include "support/program.h"
#include "support/raw_shm.h"
#include "support/raw_tcp.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"
#include "support/zmq_anchor.h"

namespace bench {
namespace {

struct Size {
  size_t bytes;
  const char* name;
  size_t calls;  // per round
  size_t torch_calls;
};
constexpr std::array<Size, 7> kSizes{{{64, "64 B", 2000, 100},
                                      {1 << 10, "1 KiB", 2000, 100},
                                      {16 << 10, "16 KiB", 1000, 100},
                                      {128 << 10, "128 KiB", 300, 50},
                                      {1 << 20, "1 MiB", 60, 20},
                                      {8 << 20, "8 MiB", 8, 5},
                                      {64 << 20, "64 MiB", 2, 2}}};

std::string command_of(const Size& size) { return "echo" + std::to_string(size.bytes); }

// One command for each size.
std::map<std::string, Command> echoes(const std::function<double(size_t count, size_t size)>& f) {
  std::map<std::string, Command> commands;
  for (const Size& size : kSizes) {
    commands[command_of(size)] = [f, bytes = size.bytes](size_t count) { return f(count, bytes); };
  }
  return commands;
}

// --- the roles --------------------------------------------------------------------------------

double weft_microseconds(size_t count, size_t size) {
  const at::Tensor x = at::ones({static_cast<int64_t>(size)}, at::kChar);
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<same>("callee", x); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, echoes(weft_microseconds));
}

void run_echo_server(const std::vector<std::string>&) { serve_echoes(accept_one_caller()); }

void run_echo_caller(const std::vector<std::string>& arguments) {
  const Socket socket = connect_to_loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
  answer_commands(echoes([&](size_t count, size_t size) { return echo(socket, count, size); }));
}

std::map<std::string, Role> roles() {
  std::map<std::string, Role> roles = {
      {"weft_callee", run_weft_callee}, {"weft_caller", run_caller},
      {"echo_server", run_echo_server}, {"echo_caller", run_echo_caller},
      {"shm_server", run_shm_server},   {"shm_caller", run_shm_caller}};
#ifdef WEFT_HAVE_ZMQ
  roles["zmq_server"] = [](const auto&) { serve_zmq_router(); };
  roles["zmq_caller"] = [](const auto& arguments) {
    ZmqDealer dealer(arguments.at(0));
    answer_commands(
        echoes([&](size_t count, size_t size) { return dealer.echo_microseconds(count, size); }));
  };
#endif
#ifdef WEFT_HAVE_GRPC
  roles["grpc_server"] = [](const auto&) { serve_grpc_echo(); };
  roles["grpc_caller"] = [](const auto& arguments) {
    GrpcCaller caller(arguments.at(0));
    answer_commands(
        echoes([&](size_t count, size_t size) { return caller.echo_microseconds(count, size); }));
  };
#endif
  return roles;
}

// --- what is compared -------------------------------------------------------------------------

// Two processes that give a tensor back, and what asks them to.
class Contestant {
 public:
  using Ask = std::function<double(const Size& size, size_t count)>;

  Contestant(std::string name, Ask ask) : name_(std::move(name)), ask_(std::move(ask)) {}

  const std::string& name() const { return name_; }
  Measurement measurement(const Size& size, size_t count) const {
    return [this, &size, count] { return ask_(size, count); };
  }

 private:
  std::string name_;
  Ask ask_;
};

Contestant anchor(const std::string& name, const std::string& role) {
  auto pair = std::make_shared<AnchorPair>(role + "_server", role + "_caller");
  return {name, [pair](const Size& size, size_t count) {
            return pair->caller().measure(command_of(size), count);
          }};
}

Contestant weft_by(const std::string& name, WorkerPair::Way way) {
  auto pair = std::make_shared<WorkerPair>(WorkerPair::weft("default", way));
  return {name, [pair](const Size& size, size_t count) {
            return pair->caller().measure(command_of(size), count);
          }};
}

// The better of two channels: one is for small tensors and the other for large ones. Torch's shared
// memory polls, also when nobody calls, and would take the processors of the others.
Contestant torch_by(const std::string& name, const std::string& scripts,
                    const std::array<std::string, 2>& channels) {
  auto pairs = std::make_shared<std::vector<WorkerPair>>();
  for (const std::string& channel : channels) {
    pairs->push_back(WorkerPair::torch(scripts, channel));
    pairs->back().freeze();
  }
  // They must run to end.
  std::shared_ptr<void> at_end(nullptr, [pairs](void*) {
    for (WorkerPair& each : *pairs) each.thaw();
  });
  return {name, [pairs, at_end](const Size& size, size_t) {
            double best = std::numeric_limits<double>::infinity();
            for (WorkerPair& each : *pairs) {
              each.thaw();
              best = std::min(best, each.caller().measure(command_of(size), size.torch_calls));
              each.freeze();
            }
            return best;
          }};
}

// A ping-pong of processes that sleep, and one copy of the bytes each way.
Contestant raw_memory() {
  auto pair = std::make_shared<AnchorPair>("shm_server", "shm_caller");
  return {"raw shared memory", [pair](const Size& size, size_t count) {
            std::vector<char> from(size.bytes, 1), to(size.bytes);
            const double copy = median_microseconds(count, [&](size_t) {
              std::memcpy(to.data(), from.data(), size.bytes);
              asm volatile("" : : "r"(to.data()) : "memory");
            });
            return pair->caller().measure("sleeping", std::min<size_t>(count, 200)) + 2 * copy;
          }};
}

// Those whose bytes go over TCP, and those whose bytes go through memory; Weft comes last.
struct Field {
  std::string what;
  std::vector<Contestant> contestants;
};

Field over_tcp(const Settings& settings) {
  Field field{"over TCP", {anchor("raw TCP", "echo")}};
#ifdef WEFT_HAVE_ZMQ
  field.contestants.push_back(anchor("ZeroMQ", "zmq"));
#else
  print_not_measured(35, "ZeroMQ", "libzmq missing when this was built", Absence::kAllowed);
#endif
#ifdef WEFT_HAVE_GRPC
  field.contestants.push_back(anchor("gRPC", "grpc"));
#else
  print_not_measured(35, "gRPC", "gRPC missing when this was built", Absence::kAllowed);
#endif
  if (torch_rpc_is_installed()) {
    field.contestants.push_back(
        torch_by("torch RPC over TCP", settings.scripts, {"basic", "mpt_uv"}));
  }
  return field;
}

Field through_memory(const Settings& settings) {
  Field field{"same host", {raw_memory()}};
  if (torch_rpc_is_installed()) {
    field.contestants.push_back(
        torch_by("torch RPC through shared memory", settings.scripts, {"shm/basic", "shm/cma"}));
  }
  return field;
}

void compare(const Settings& settings, const Field& field, const Size& size) {
  std::vector<Measurement> measurements;
  for (const Contestant& each : field.contestants)
    measurements.push_back(each.measurement(size, settings.scaled(size.calls)));
  if (settings.anchors_only) measurements.emplace_back();
  const auto series = take_turns(settings.rounds(), measurements);
  const size_t anchors = measurements.size() - 1;
  for (size_t i = 0; i < anchors; ++i) {
    const std::string& name = field.contestants[i].name();
    const bool is_limit = name.starts_with("raw");
    print({35, std::string(size.name) + " there and back, " + field.what, name, "us",
           is_limit ? no_bar() : times_faster(1), series[i], series[anchors], ""});
  }
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(35)) return;
  const auto run = [&](Field field, WorkerPair::Way way) {
    if (!settings.anchors_only) field.contestants.push_back(weft_by("Weft", way));
    for (const Size& size : kSizes) compare(settings, field, size);
  };
  run(over_tcp(settings), WorkerPair::Way::kTcp);
  run(through_memory(settings), WorkerPair::Way::kNearest);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, bench::roles(), bench::measure);
}
