// Row 32: all_reduce between 2 to 32 members on one host, against Gloo.
//
// The members of a group are one process and its copies. The first answers commands, "BYTES COUNT",
// and tells the others, which do the same at the same time. torch_reduce.py does so with Gloo.
// SPDX-License-Identifier: BSD-3-Clause

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <weft/process_group.h>
#include <weft/rpc.h>

#include "support/members.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"

namespace bench {
namespace {

constexpr size_t kWarmup = 3;

// --- a member of a Weft group ------------------------------------------------------------------

struct Order {
  uint64_t bytes = 0;  // zero: no more
  uint64_t count = 0;
};

std::string name_of(size_t rank) { return "m" + std::to_string(rank); }

// What the first member says, on all. Gloo is measured in between, so it may take a while.
Order tell(const Order& order) {
  return weft::all_gather(order, {}, std::chrono::minutes(15)).at(name_of(0));
}

double reduce_microseconds(const weft::ProcessGroup& group, const Order& order) {
  const at::Tensor tensor = at::ones({static_cast<int64_t>(order.bytes / sizeof(float))});
  for (size_t i = 0; i < kWarmup; ++i) group.all_reduce(tensor);
  group.barrier();
  return median_microseconds(order.count, [&](size_t) { group.all_reduce(tensor); });
}

// WEFT_BENCH_ALL_REDUCE: one of the ways, by its number in AllReduceWay.
weft::AllReduceWay wanted_way() {
  const char* wanted = std::getenv("WEFT_BENCH_ALL_REDUCE");
  return static_cast<weft::AllReduceWay>(wanted ? std::atoi(wanted) : 0);
}

void be_member(size_t rank, size_t members, const std::string& rendezvous) {
  at::set_num_threads(1);  // a process for each core
  weft::Options options;
  options.rank = static_cast<int>(rank);
  options.world_size = static_cast<int>(members);
  options.init_method = rendezvous;
  weft::init_rpc(name_of(rank), options);
  {
    const weft::ProcessGroup group = weft::new_group({}, {.all_reduce = wanted_way()});
    if (rank == 0) {
      announce("ready");
      for (Order order; std::cin >> order.bytes >> order.count;) {
        tell(order);
        announce(std::to_string(reduce_microseconds(group, order)));
      }
      tell({});
    } else {
      for (Order order; (order = tell({})).bytes != 0;) reduce_microseconds(group, order);
    }
  }
  weft::shutdown();
}

// --- the row -----------------------------------------------------------------------------------

struct Size {
  size_t bytes;
  const char* text;
  size_t count;
};
constexpr Size kSizes[] = {{size_t{4} << 10, "4 KiB", 100},
                           {size_t{512} << 10, "512 KiB", 40},
                           {size_t{8} << 20, "8 MiB", 9},
                           {size_t{25} << 20, "25 MiB", 5}};

std::vector<size_t> member_counts(const Settings& settings) {
  if (const char* wanted = std::getenv("WEFT_BENCH_MEMBERS"))
    return {std::max<size_t>(2, std::strtoul(wanted, nullptr, 10))};
  if (settings.quick) return {3};
  if (std::thread::hardware_concurrency() >= 8) return {2, 4, 8, 16, 32};
  return {2, 4};
}

void measure_group(const Settings& settings, size_t count, bool has_gloo) {
  std::optional<Members> gloo, weft;
  if (has_gloo)
    gloo.emplace(Members::of_program({python(), settings.scripts + "/torch_reduce.py"}, count));
  if (!settings.anchors_only) weft.emplace(Members::of_role("members", count));
  for (const Size& size : kSizes) {
    const size_t times = settings.scaled(size.count);
    const std::string bytes = std::to_string(size.bytes);
    const auto series =
        take_turns(settings.rounds(), {gloo ? gloo->measuring(bytes, times) : Measurement(),
                                       weft ? weft->measuring(bytes, times) : Measurement()});
    const bool much = count == 8 && size.bytes == size_t{8} << 20;
    print(
        {32, std::string("all_reduce of ") + size.text + ", " + std::to_string(count) + " members",
         "torch's Gloo", "us", much ? times_faster(1.3) : at_most(1.05), series[0], series[1], ""});
  }
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(32)) return;
  const bool has_gloo = torch_rpc_is_installed();
  if (!has_gloo)
    print_not_measured(32, "all_reduce against Gloo", "python3-torch missing", Absence::kAllowed);
  for (const size_t count : member_counts(settings)) measure_group(settings, count, has_gloo);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const auto members = [](const std::vector<std::string>& arguments) {
    bench::run_members(arguments, bench::be_member);
  };
  return bench::run_program(argc, argv, {{"members", members}}, bench::measure);
}
