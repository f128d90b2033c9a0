// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/manifest.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::checkpoint {

namespace {

constexpr char kFirstLine[] = "weft checkpoint 1\n";

uint64_t checksum_of(const std::string& text) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.value();
}

std::string folder_name(uint64_t number) { return fmt::format("{:08}", number); }

constexpr uint64_t kMostCheckpoints = 1'000'000'000'000;

// Nothing unless the name is one that folder_name() gives: other folders are not checkpoints.
std::optional<uint64_t> number_of(const std::string& name) {
  uint64_t number = 0;
  std::from_chars(name.data(), name.data() + name.size(), number);
  const bool ours = number < kMostCheckpoints && folder_name(number) == name;
  return ours ? std::optional(number) : std::nullopt;
}

std::string ending_of(uint64_t save) { return fmt::format(".{:016x}.part", save); }

// The names of all files and folders in a directory; none if there is no such directory.
std::vector<std::string> list(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (!directory && errno == ENOENT) return names;
  if (!directory) throw_storage("list", path);
  errno = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) throw_storage("list", path);
  return names;
}

}  // namespace

std::string Manifest::text() const {
  std::string lines = kFirstLine + fmt::format("save {:016x}\n", save);
  for (const auto& [worker, seal] : parts) {
    lines += fmt::format("part {} {} {:016x}\n", worker, seal.bytes, seal.checksum);
  }
  return lines + fmt::format("end {:016x}\n", checksum_of(lines));
}

Manifest Manifest::parse(const std::string& text, const std::string& path) {
  Manifest manifest;
  std::istringstream words(text);
  words.ignore(sizeof kFirstLine - 1);
  std::string word;
  words >> word >> std::hex >> manifest.save;
  for (; words >> word && word == "part";) {
    std::string worker;
    PartSeal seal;
    words >> worker >> std::dec >> seal.bytes >> std::hex >> seal.checksum;
    manifest.parts.emplace(worker, seal);
  }
  // A manifest is valid only if writing it again gives the same text.
  if (manifest.text() == text) return manifest;
  throw Error(ErrorCode::kStorageFailed, path + " is damaged");
}

Folder::Folder(const std::string& directory, uint64_t number)
    : path_(directory + "/" + folder_name(number)) {}

std::string Folder::part(const std::string& worker, uint64_t save) const {
  return path_ + "/" + worker + ending_of(save);
}

bool Folder::is_complete() const {
  if (::access(manifest().c_str(), F_OK) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) throw_storage("read", manifest());
  return false;
}

void Folder::write(const Manifest& manifest) const {
  const std::string text = manifest.text();
  DurableFile file(this->manifest());
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

Manifest Folder::read() const {
  std::ifstream file(manifest());
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw_storage("read", manifest());
  return Manifest::parse(text.str(), manifest());
}

namespace {

// Removes the files of `folder` whose names end so, finished or not, and the folder if it is empty.
void remove_files(const std::string& folder, const std::string& ending) {
  std::vector<std::string> names;
  try {
    names = list(folder);
  } catch (const Error&) {
    return;
  }
  for (const std::string& name : names) {
    if (name.ends_with(ending) || name.ends_with(ending + ".unfinished")) {
      ::unlink((folder + "/" + name).c_str());
    }
  }
  ::rmdir(folder.c_str());  // if it is empty
}

}  // namespace

void Folder::discard(uint64_t save) const { remove_files(path_, ending_of(save)); }

void Folder::remove() const {
  if (::unlink(manifest().c_str()) != 0 && errno != ENOENT) return;
  // Sync before the parts are removed: the manifest must not come back without its parts after a
  // power failure.
  try {
    sync_directory(path_);
  } catch (const Error&) {
    return;
  }
  ::unlink((manifest() + ".unfinished").c_str());
  remove_files(path_, ".part");
}

std::vector<uint64_t> Folder::numbers(const std::string& directory) {
  std::vector<uint64_t> numbers;
  for (const std::string& name : list(directory)) {
    if (const auto number = number_of(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<uint64_t> Folder::complete_numbers(const std::string& directory) {
  std::vector<uint64_t> complete = numbers(directory);
  std::erase_if(complete, [&](uint64_t each) { return !Folder(directory, each).is_complete(); });
  return complete;
}

}  // namespace weft::checkpoint
