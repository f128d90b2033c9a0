// The `weft` command.
// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "run_command.h"

namespace {

constexpr int kWrongUsage = 2;

int run(std::vector<std::string> command_line) {
  CLI::App app("Runs and inspects distributed programs made with Weft.", "weft");
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  weft::tool::RunCommand run_command(app);
  try {
    run_command.take_program(command_line);
    std::ranges::reverse(command_line);  // the order CLI11 wants
    app.parse(command_line);
    if (!run_command.is_chosen()) throw CLI::ValidationError("no command given");
    return run_command.run();
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    const char* command = run_command.is_chosen() ? "weft run" : "weft";
    fmt::print(stderr, "{}: {}\nSee `{} --help`.\n", command, error.what(), command);
    return kWrongUsage;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "weft: {}\n", error.what());
    return 1;
  }
}
