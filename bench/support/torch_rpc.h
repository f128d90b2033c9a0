// The peer that is Python: where it is and whether it can be measured.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"

namespace bench {

/// The Python that has torch: WEFT_BENCH_PYTHON, or that of the system.
inline std::string python() {
  const char* wanted = std::getenv("WEFT_BENCH_PYTHON");
  return wanted ? wanted : "/usr/bin/python3";
}

inline bool torch_rpc_is_installed() {
  const std::string check = python() +
                            " -c 'import torch.distributed.rpc as r; assert r.is_available()'"
                            " 2>/dev/null";
  return std::system(check.c_str()) == 0;
}

/// A command that both callers understand.
struct TorchComparison {
  int row;
  std::string command, what, unit;
  size_t torch_count, weft_count;
  Bar bar;
};

/// Over TCP, in turns; torch's channel is the one for small tensors.
inline void compare_with_torch(const Settings& settings, const TorchComparison& c) {
  if (!torch_rpc_is_installed()) {
    print_not_measured(c.row, c.what, "python3-torch missing", Absence::kAllowed);
    return;
  }
  std::optional<WorkerPair> torch(WorkerPair::torch(settings.scripts, "basic"));
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft("default", WorkerPair::Way::kTcp));
  const auto series =
      take_turns(settings.rounds(), {asking(torch, c.command, settings.scaled(c.torch_count)),
                                     asking(workers, c.command, settings.scaled(c.weft_count))});
  print({c.row, c.what, "torch RPC over TCP", c.unit, c.bar, series[0], series[1], ""});
}

}  // namespace bench
