// SPDX-License-Identifier: BSD-3-Clause
#include <charconv>
#include <string>

#include <c10/core/Device.h>
#include <fmt/format.h>

#include "rpc/functions/describe_exception.h"
#include "weft/nn.h"

namespace weft::nn {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no placement of a module: {}; write \"ps\", \"ps/cuda:0\" or "
                          "\"rank:1/cpu\"",
                          text, why));
}

Destination read_worker(const std::string& text, const std::string& worker,
                        std::optional<Timeout> timeout) {
  constexpr std::string_view kRank = "rank:";
  if (worker.empty()) refuse(text, "it names no worker");
  if (!worker.starts_with(kRank)) return {worker, timeout};
  int rank = -1;
  const char* const end = worker.data() + worker.size();
  const auto [rest, error] = std::from_chars(worker.data() + kRank.size(), end, rank);
  if (error != std::errc() || rest != end || rank < 0) refuse(text, "the rank is no number");
  return {rank, timeout};
}

std::string read_device(const std::string& text, const std::string& device) {
  try {
    return at::Device(device).str();
  } catch (const std::exception&) {
    refuse(text, rpc::describe_exception(std::current_exception()));
  }
}

}  // namespace

Placement::Placement(const std::string& text, std::optional<Timeout> timeout)
    : worker_(read_worker(text, text.substr(0, text.find('/')), timeout)),
      device_(read_device(
          text, text.find('/') == std::string::npos ? "cpu" : text.substr(text.find('/') + 1))) {}

}  // namespace weft::nn
