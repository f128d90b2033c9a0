// SPDX-License-Identifier: BSD-3-Clause
#include <map>

#include <fmt/format.h>

#include "base/demangle.h"
#include "base/mutex.h"
#include "weft/optim/optimizer_kind.h"
#include "weft/optim/optimizer_traits.h"

namespace weft::optim {

namespace {

// Global, like the table of functions: it describes the program, not an agent.
struct KindTable {
  base::Mutex mutex;
  std::map<std::string, const OptimizerKind*> kinds
      WEFT_GUARDED_BY(mutex);  // null: two classes have this name

  static KindTable& get() {
    static auto* leaked = new KindTable;
    return *leaked;
  }
};

}  // namespace

// Every worker knows these classes, whichever its program names.
template class detail::TypedKind<torch::optim::SGD>;
template class detail::TypedKind<torch::optim::Adam>;
template class detail::TypedKind<torch::optim::AdamW>;
template class detail::TypedKind<torch::optim::Adagrad>;
template class detail::TypedKind<torch::optim::RMSprop>;
template class detail::TypedKind<Adadelta>;
template class detail::TypedKind<Adamax>;
template class detail::TypedKind<Rprop>;

std::string name_of(const OptimizerKind& kind) { return base::demangle(kind.type()); }

const OptimizerKind& register_kind(const OptimizerKind& kind) {
  KindTable& table = KindTable::get();
  const base::MutexLock lock(table.mutex);
  const OptimizerKind*& known = table.kinds.try_emplace(name_of(kind), &kind).first->second;
  if (known && known->type() == kind.type()) return *known;
  known = nullptr;
  return kind;
}

const OptimizerKind& find_kind(const std::string& name) {
  KindTable& table = KindTable::get();
  const base::MutexLock lock(table.mutex);
  auto found = table.kinds.find(name);
  if (found != table.kinds.end()) {
    if (found->second) return *found->second;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("this program has two classes of optimizers named {}", name));
  }
  std::string known;
  for (const auto& [each, kind] : table.kinds) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("this program knows no optimizer {}, only {}; weft::optim::expose makes "
                          "one known",
                          name, known));
}

}  // namespace weft::optim
