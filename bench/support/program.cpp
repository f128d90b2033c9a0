// SPDX-License-Identifier: BSD-3-Clause
#include "support/program.h"

#include <signal.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>

namespace bench {
namespace {

std::set<int> parse_rows(const std::string& list) {
  std::set<int> rows;
  std::istringstream stream(list);
  for (std::string row; std::getline(stream, row, ',');) rows.insert(std::stoi(row));
  return rows;
}

Settings parse_settings(const std::vector<std::string>& arguments) {
  Settings settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (option == "--quick") {
      settings.quick = true;
    } else if (option == "--anchors-only") {
      settings.anchors_only = true;
    } else if (option == "--rows" && has_value) {
      settings.rows = parse_rows(arguments[++i]);
    } else if (option == "--scripts" && has_value) {
      settings.scripts = arguments[++i];
    } else if (option == "--examples" && has_value) {
      settings.examples = arguments[++i];
    } else {
      throw std::invalid_argument("unknown or incomplete option: " + option);
    }
  }
  return settings;
}

}  // namespace

int run_program(int argc, char** argv, const std::map<std::string, Role>& roles,
                const std::function<void(const Settings&)>& measure) {
  // A child that died shows as a failed write, by name, rather than as our own death.
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() >= 2 && arguments[0] == "--role") {
      roles.at(arguments[1])({arguments.begin() + 2, arguments.end()});
    } else {
      measure(parse_settings(arguments));
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << argv[0] << (arguments.size() >= 2 ? " " + arguments[1] : "") << ": "
              << error.what() << std::endl;
    return 1;
  }
}

void announce(const std::string& line) { std::cout << line << std::endl; }

void answer_commands(const std::map<std::string, Command>& commands) {
  std::cout.precision(9);
  std::string name;
  for (size_t count = 0; std::cin >> name >> count;)
    std::cout << commands.at(name)(count) << std::endl;
}

}  // namespace bench
