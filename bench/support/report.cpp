// SPDX-License-Identifier: BSD-3-Clause
#include "support/report.h"

#include <cstdio>
#include <iostream>
#include <sstream>

#include <torch/version.h>

#include "support/samples.h"

namespace bench {
namespace {

// The texts are ours and hold nothing that JSON would want escaped but quotes and backslashes.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + '"';
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string list(const std::vector<double>& values) {
  std::string json;
  for (const double value : values) json += (json.empty() ? "" : ",") + number(value);
  return "[" + json + "]";
}

const char* reached(const Bar& bar, double figure) {
  if (bar.side == Bar::Side::kNone) return "null";
  const bool is_reached =
      bar.side == Bar::Side::kAtMost ? figure <= bar.limit : figure >= bar.limit;
  return is_reached ? "true" : "false";
}

std::string text_of(const Bar& bar, const std::string& unit) {
  if (bar.side == Bar::Side::kNone) return "-";
  const std::string text = (bar.side == Bar::Side::kAtMost ? "<= " : ">= ") + number(bar.limit);
  return bar.figure == Bar::Figure::kWeftAlone ? text + " " + unit : text;
}

// The fields that exist only once both sides are measured.
std::string verdict(const Row& row, double anchor) {
  if (row.weft_samples.empty()) return R"("weft_value":null,"ratio":null,"ok":null)";
  const double weft = median(row.weft_samples);
  const bool alone = row.bar.figure == Bar::Figure::kWeftAlone;
  const double ratio =
      row.bar.figure == Bar::Figure::kAnchorOverWeft ? anchor / weft : weft / anchor;
  return "\"weft_value\":" + number(weft) + ",\"ratio\":" + (alone ? "null" : number(ratio)) +
         ",\"ok\":" + reached(row.bar, alone ? weft : ratio);
}

}  // namespace

void print(const Row& row) {
  const bool has_anchor = !row.anchor_samples.empty();
  const double anchor = has_anchor ? median(row.anchor_samples) : 0;
  std::ostringstream line;
  line << "{\"row\":" << row.number << ",\"what\":" << quoted(row.what)
       << ",\"anchor\":" << quoted(row.anchor) << ",\"unit\":" << quoted(row.unit)
       << ",\"anchor_value\":" << (has_anchor ? number(anchor) : "null") << ","
       << verdict(row, anchor) << ",\"bar\":" << quoted(text_of(row.bar, row.unit))
       << ",\"anchor_samples\":" << list(row.anchor_samples)
       << ",\"weft_samples\":" << list(row.weft_samples);
  if (!row.note.empty()) line << ",\"note\":" << quoted(row.note);
  std::cout << line.str() << "}" << std::endl;
}

void print_not_measured(int number, const std::string& what, const std::string& reason,
                        Absence absence) {
  std::cout << "{\"row\":" << number << ",\"what\":" << quoted(what)
            << ",\"not_measured\":" << quoted(reason)
            << ",\"allowed\":" << (absence == Absence::kAllowed ? "true" : "false") << "}"
            << std::endl;
}

void print_facts() {
  std::cout << R"({"facts":{"libtorch":")" << TORCH_VERSION << "\"}}" << std::endl;
}

}  // namespace bench
