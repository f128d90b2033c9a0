// Campaigns with workers of one host, which share memory.
//
//   weft_neighbours kills COUNT [SEED]
//   weft_neighbours freezes COUNT [SEED]
//   weft_neighbours scribbles SECONDS [SEED]
//   weft_neighbours all_to_all WORKERS SECONDS
//
// Ends with 0 if everything was as it should be.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <map>
#include <string>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "campaigns.h"
#include "nursery.h"
#include "senders.h"

namespace weft::neighbours {
namespace {

void run_role(const std::string& arguments) {
  at::set_num_threads(1);
  if (arguments.starts_with("senders")) run_sender(arguments);
  if (arguments.starts_with("scribbles")) run_scribbler(arguments);
}

int run(int argc, char** argv) {
  const std::string campaign = argc > 2 ? argv[1] : "";
  const uint64_t first = argc > 2 ? std::stoull(argv[2]) : 0;
  const uint64_t second = argc > 3 ? std::stoull(argv[3]) : 1;
  if (campaign == "all_to_all") return run_all_to_all(argc, argv, static_cast<int>(first), second);
  using Campaign = bool (*)(Nursery&, uint64_t, uint64_t seed);
  const std::map<std::string, Campaign> campaigns = {
      {"kills", run_kills}, {"freezes", run_freezes}, {"scribbles", run_scribbles}};
  const auto found = campaigns.find(campaign);
  if (found == campaigns.end()) {
    fmt::print(
        "usage: {} kills COUNT [SEED] | freezes COUNT [SEED] | scribbles SECONDS [SEED] | "
        "all_to_all WORKERS SECONDS\n",
        argv[0]);
    return 2;
  }
  Nursery nursery(&run_role);
  at::set_num_threads(1);
  const bool good = found->second(nursery, first, second);
  fmt::print("{}\n", good ? "good" : "NOT GOOD");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace weft::neighbours

int main(int argc, char** argv) { return weft::neighbours::run(argc, argv); }
