// SPDX-License-Identifier: BSD-3-Clause
// Gives every file of the folders named on the command line to the fuzz target it is linked with:
// what the fuzzer once found stays fixed, without the fuzzer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool replay(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    std::fprintf(stderr, "cannot be read: %s\n", file.c_str());
    return false;
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  // Named first: an input that crashes leaves its name as the last line. A copy of exactly its
  // size lets AddressSanitizer see the first byte read past the end.
  std::fprintf(stderr, "replaying %s\n", file.c_str());
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(input.data(), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s corpus-folder...\n", argv[0]);
    return 2;
  }
  size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      std::fprintf(stderr, "no such corpus folder: %s\n", argv[i]);
      return 1;
    }
    const std::vector<fs::path> files = files_in(argv[i]);
    if (files.empty()) {
      std::fprintf(stderr, "corpus folder is empty: %s\n", argv[i]);
      return 1;
    }
    for (const fs::path& file : files) {
      if (!replay(file)) return 1;
    }
    count += files.size();
  }
  std::printf("%zu inputs replayed\n", count);
  return 0;
}
