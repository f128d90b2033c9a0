// SPDX-License-Identifier: BSD-3-Clause
#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace weft {

namespace {

int threshold_from_environment() {
  const char* wanted = std::getenv("WEFT_LOG");
  if (!wanted) return static_cast<int>(LogLevel::kWarning);
  if (!std::strcmp(wanted, "info")) return static_cast<int>(LogLevel::kInfo);
  if (!std::strcmp(wanted, "error")) return static_cast<int>(LogLevel::kError);
  if (!std::strcmp(wanted, "off")) return static_cast<int>(LogLevel::kError) + 1;
  return static_cast<int>(LogLevel::kWarning);
}

void write_to_standard_error(LogLevel level, std::string_view line) {
  static const int threshold = threshold_from_environment();
  if (static_cast<int>(level) < threshold) return;
  // One write for each line, so that lines of several processes do not mix.
  std::string text(line);
  text += '\n';
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
}

// Leaked on purpose: threads may log while static objects are destroyed.
struct SinkHolder {
  base::Mutex mutex;
  std::shared_ptr<const LogSink> sink WEFT_GUARDED_BY(mutex) =
      std::make_shared<const LogSink>(write_to_standard_error);
};
SinkHolder& holder() {
  static auto* leaked = new SinkHolder;
  return *leaked;
}

}  // namespace

void set_log_sink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(sink ? std::move(sink) : write_to_standard_error);
  const base::MutexLock lock(holder().mutex);
  holder().sink = std::move(shared);
}

namespace base {

void log_formatted(LogLevel level, std::string_view who, fmt::string_view format,
                   fmt::format_args arguments) noexcept {
  static constexpr const char* kNames[] = {"info", "warning", "error"};
  try {
    std::shared_ptr<const LogSink> sink;
    {
      const base::MutexLock lock(holder().mutex);
      sink = holder().sink;
    }
    (*sink)(level, fmt::format("weft[{}] {}: {}", who, kNames[static_cast<int>(level)],
                               fmt::vformat(format, arguments)));
  } catch (...) {
    // One line less in the log.
  }
}

}  // namespace base
}  // namespace weft
