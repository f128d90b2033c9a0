// SPDX-License-Identifier: BSD-3-Clause
#include "made_text.h"

#include <cctype>
#include <map>
#include <random>
#include <sstream>
#include <vector>

namespace {

// A word that has a rule stands for one of its alternatives; they are in upper case.
using Grammar = std::map<std::string, std::vector<std::string>>;

const Grammar kGrammar{
    {"SENTENCE",
     {"CLAUSE", "CLAUSE , and CLAUSE", "TIME , CLAUSE", "CLAUSE because CLAUSE",
      "if CLAUSE , then CLAUSE", "SOMEBODY says that CLAUSE"}},
    {"CLAUSE", {"SOMEBODY DOES", "SOMEBODY DOES PLACE", "SOMEBODY HOW DOES", "THING IS QUALITY"}},
    {"TIME", {"in the evening", "every morning", "after the storm", "long ago", "at noon"}},
    {"SOMEBODY", {"the PERSON", "the QUALITY PERSON", "a PERSON", "nobody", "her WHO", "his WHO"}},
    {"PERSON", {"captain", "baker", "teacher", "stranger", "gardener", "doctor", "painter"}},
    {"WHO", {"brother", "sister", "neighbour", "mother", "old friend"}},
    {"QUALITY", {"old", "quiet", "tired", "happy", "strange", "careful", "young"}},
    {"HOW", {"slowly", "never", "always", "often", "quietly", "seldom"}},
    {"DOES",
     {"opens OBJECT", "looks for OBJECT", "remembers OBJECT", "sings", "waits", "walks home",
      "gives OBJECT to SOMEBODY", "writes about OBJECT", "sells OBJECT"}},
    {"OBJECT", {"the THINGNAME", "a QUALITY THINGNAME", "THINGNAME and THINGNAME", "something"}},
    {"THING", {"the THINGNAME", "the other THINGNAME", "every THINGNAME"}},
    {"THINGNAME", {"letter", "boat", "garden", "bread", "window", "song", "lantern", "map"}},
    {"IS", {"is", "was", "seems", "will be", "is not"}},
    {"PLACE", {"near the harbour", "in the kitchen", "on the bridge", "behind the house"}},
};

class Writer {
 public:
  explicit Writer(uint64_t seed) : random_(seed) {}

  std::string sentence() {
    std::string text;
    expand("SENTENCE", text);
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    return text + ".";
  }

 private:
  void expand(const std::string& word, std::string& text) {
    const auto rule = kGrammar.find(word);
    if (rule == kGrammar.end()) {
      if (!text.empty() && word != ",") text += ' ';
      text += word;
      return;
    }
    // Not a distribution: those differ between standard libraries.
    std::istringstream words(rule->second[random_() % rule->second.size()]);
    for (std::string next; words >> next;) expand(next, text);
  }

  std::mt19937_64 random_;
};

}  // namespace

std::string make_text(size_t size, uint64_t seed) {
  Writer writer(seed);
  std::string text;
  while (text.size() < size) text += writer.sentence() + (text.size() % 7 == 0 ? "\n" : " ");
  return text;
}
