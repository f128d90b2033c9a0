// SPDX-License-Identifier: BSD-3-Clause
#include "support/random_graph.h"

#include <algorithm>
#include <mutex>
#include <random>
#include <utility>

#include <ATen/core/Formatting.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

namespace weft::random_graphs {

constexpr int64_t kSize = 3;  // every value is a square matrix, so that all operations compose

/// What an operation computes from: its inputs, a leaf of its worker's, a parameter.
struct Given {
  std::vector<at::Tensor> inputs = {};
  at::Tensor leaf = {};
  int64_t number = 0;
  const at::Tensor& operator[](size_t i) const { return inputs.at(i); }
  int64_t row() const { return number % kSize; }
};

// Leaves travel as they are, some of them as floats; everything else computes in double.
at::Tensor matrix(const at::Tensor& value) { return value.to(at::kDouble); }

at::Tensor sum_of(const std::vector<at::Tensor>& terms) {
  at::Tensor sum = terms.at(0);
  for (size_t i = 1; i < terms.size(); ++i) sum = sum + terms[i];
  return sum;
}

// Columns for each row; one may be there several times.
at::Tensor columns(int64_t number) {
  at::Tensor all = at::empty({kSize, kSize}, at::kLong);
  int64_t* each = all.data_ptr<int64_t>();
  for (int64_t i = 0; i < kSize * kSize; ++i) each[i] = number / (i + 1) % kSize;
  return all;
}

at::Tensor multiply_in_place(const Given& x) {
  at::Tensor product = x[0].clone().mul_(x[1]);
  product.select(0, x.row()).mul_(0.5);  // through a view
  return product;
}

struct Rule {
  uint32_t inputs;
  at::Tensor (*result)(const Given&);
};
constexpr uint32_t kAnyNumber = 9;
constexpr size_t kLeafRules = 3;  // the first ones use a leaf
// Results stay near [-1, 1] however deep the graph. relu bends where no sum of equal terms ends up:
// a last bit that differs must not switch a gradient.
const std::vector<Rule> rules = {
    {0, [](const Given& x) { return x.leaf; }},
    {1, [](const Given& x) { return x[0] * matrix(x.leaf); }},
    {1, [](const Given& x) { return at::matmul(x[0], matrix(x.leaf)) * 0.5; }},
    {0,
     [](const Given& x) {
       return at::full({kSize, kSize}, 0.3 * x.row() - 0.4, at::kDouble);
     }},
    {1, [](const Given& x) { return x[0]; }},
    {1, [](const Given& x) { return x[0].detach(); }},
    {1, [](const Given& x) { return x[0].t(); }},
    {1,
     [](const Given& x) {
       return x[0].mean().expand({kSize, kSize});
     }},
    {1,
     [](const Given& x) {
       return x[0].select(0, x.row()).expand({kSize, kSize});
     }},
    {1, [](const Given& x) { return x[0].index_select(1, columns(x.number).select(0, x.row())); }},
    {1, [](const Given& x) { return x[0].gather(1, columns(x.number)); }},
    {1,
     [](const Given& x) {
       return at::cat({x[0].narrow(0, 1, 2), x[0].narrow(0, 0, 1)}, 0);
     }},
    {1, [](const Given& x) { return at::tanh(x[0]); }},
    {1, [](const Given& x) { return at::sigmoid(x[0]); }},
    {1, [](const Given& x) { return at::relu(x[0] + 0.2357) * 0.8; }},
    {2, [](const Given& x) { return (x[0] + x[1]) * 0.5; }},
    {2, [](const Given& x) { return (x[0] - x[1]) * 0.5; }},
    {2, [](const Given& x) { return x[0] * x[1]; }},
    {2, [](const Given& x) { return at::matmul(x[0], x[1]) * 0.5; }},
    {2, multiply_in_place},
    {kAnyNumber, [](const Given& x) { return sum_of(x.inputs) * (1.0 / x.inputs.size()); }},
};

struct Random {
  std::mt19937_64 engine;
  uint32_t below(size_t limit) { return static_cast<uint32_t>(engine() % limit); }
  bool coin() { return below(2) == 0; }
  double unit() { return static_cast<double>(engine() >> 11) * 0x1p-52 - 1.0; }  // -1 to 1
  References references() { return coin() ? References::kFetch : References::kPassOn; }
};

// Says whose operations they are, so that inner sections say it last.
void add_sections(Program& program, Random& random, const std::vector<int32_t>& workers,
                  const Section& outer, int depth) {
  const auto parent = static_cast<uint32_t>(program.sections.size());
  program.sections.push_back(outer);
  for (uint32_t i = outer.first; i < outer.last; ++i) program.operations[i].worker = outer.foreman;
  for (uint32_t index = outer.first; depth < 4 && index < outer.last; ++index) {
    if (random.below(6) > 0) continue;
    Section section;
    section.foreman = workers[random.below(workers.size())];
    section.parent = parent;
    section.first = index;
    section.last = std::min(outer.last, index + 1 + random.below(12));
    section.way = random.coin() ? Way::kAsync : Way::kSync;
    add_sections(program, random, workers, section, depth + 1);
    index = section.last - 1;
  }
}

// `operation.worker` is the foreman.
void choose_operation(Operation& operation, Random& random, const std::vector<int32_t>& workers,
                      uint32_t index) {
  if (index > 0) operation.rule = random.below(random.below(4) > 0 ? rules.size() : kLeafRules);
  operation.number = random.below(10'000);
  uint32_t inputs = rules[operation.rule].inputs;
  if (inputs == kAnyNumber) inputs = 1 + random.below(5);
  for (; inputs > 0; --inputs) {
    // Recent ones more often: deep graphs rather than wide ones.
    const uint32_t back = random.below(random.coin() ? index : std::min<size_t>(index, 4));
    operation.inputs.push_back(index - 1 - back);
  }
  const uint32_t place = random.below(4);
  if (place > 1) operation.worker = workers[random.below(workers.size())];
  operation.way = place == 0 ? Way::kHere : static_cast<Way>(1 + random.below(3));
  operation.references = random.references();
}

Program make_program(uint64_t seed) {
  Random random{std::mt19937_64(seed)};
  Program program;
  program.id = seed;
  const uint32_t length = 5 + random.below(56);
  program.operations.resize(length);
  std::vector<int32_t> workers = {0, 1, 2, 3, 4};
  std::swap(workers[0], workers[seed % kDrivers]);
  for (size_t left = 2 + random.below(kWorkers - 1); workers.size() > left;) {
    workers.erase(workers.begin() + 1 + random.below(workers.size() - 1));
  }
  add_sections(program, random, workers, {.foreman = workers[0], .last = length}, 0);
  for (uint32_t i = 0; i < length; ++i) choose_operation(program.operations[i], random, workers, i);
  // A leaf, so that there are gradients at all, and few others: much is never used.
  program.roots.push_back(0);
  for (uint32_t more = random.below(5); more > 0; --more) {
    program.roots.push_back(length - 1 - random.below(length / 2));
  }
  program.separate_roots = random.coin();
  return program;
}

Leaves make_leaves(uint64_t seed) {
  Random random{std::mt19937_64(~seed)};
  Leaves leaves(kWorkers);
  for (auto& of_worker : leaves) {
    for (size_t i = 0; i < kLeavesEach; ++i) {
      at::Tensor leaf = at::empty({kSize, kSize}, at::kDouble);
      std::generate_n(leaf.data_ptr<double>(), kSize * kSize, [&random] { return random.unit(); });
      if (i == 0) leaf = leaf.to(at::kFloat);
      of_worker.push_back(leaf.set_requires_grad(true));
    }
  }
  return leaves;
}

at::Tensor evaluate(const Operation& operation, const Leaves& leaves,
                    const std::vector<at::Tensor>& inputs) {
  Given given;
  for (const at::Tensor& input : inputs) given.inputs.push_back(matrix(input));
  given.leaf = leaves.at(operation.worker).at(operation.number % kLeavesEach);
  given.number = operation.number;
  return rules.at(operation.rule).result(given);
}

std::vector<at::Tensor> losses_of(const Program& program,
                                  const std::function<at::Tensor(uint32_t)>& result) {
  std::vector<at::Tensor> losses;
  double weight = 0.1;
  for (const uint32_t root : program.roots) {
    const at::Tensor loss = matrix(result(root)).sum() * weight;
    if (loss.requires_grad()) losses.push_back(loss);
    weight += 0.8;
  }
  if (!program.separate_roots) losses = std::vector<at::Tensor>{sum_of(losses)};
  return losses;
}

at::Tensor run_locally(const Program& program, const Leaves& leaves) {
  std::vector<at::Tensor> results;
  for (const Operation& operation : program.operations) {
    std::vector<at::Tensor> inputs;
    for (const uint32_t input : operation.inputs) inputs.push_back(results[input]);
    results.push_back(evaluate(operation, leaves, inputs));
  }
  const at::Tensor loss =
      sum_of(losses_of(program, [&results](uint32_t root) { return results[root]; }));
  loss.backward();
  return loss.detach();
}

Leaves leaves_of(uint64_t program) {
  static std::mutex mutex;
  static std::map<uint64_t, Leaves> table;
  std::lock_guard lock(mutex);
  Leaves& leaves = table[program];
  if (leaves.empty()) leaves = make_leaves(program);
  return leaves;
}

at::Tensor tensor_of(const Value& value) {
  const auto* reference = std::get_if<RRef<at::Tensor>>(&value);
  return reference ? reference->to_here() : std::get<at::Tensor>(value);
}

// What workers ask of each other.
at::Tensor compute(uint64_t program, const Operation& operation, const std::vector<Value>& inputs) {
  std::vector<at::Tensor> tensors;
  for (const Value& input : inputs) tensors.push_back(tensor_of(input));
  return evaluate(operation, leaves_of(program), tensors);
}
Values oversee(const Program& program, uint32_t section, const Values& known);

/// Computes a section or has others compute it, in all the ways there are.
class Foreman {
 public:
  Foreman(Agent& agent, const Program& program, const Values& known)
      : agent_(agent), program_(program), values_(known) {}

  /// All its results, some of them references.
  Values work(uint32_t number) {
    const Section& section = program_.sections.at(number);
    uint32_t next = section.first;
    for (uint32_t inner = number + 1; inner < program_.sections.size(); ++inner) {
      if (program_.sections[inner].parent != number) continue;
      while (next < program_.sections[inner].first) start(next++);
      delegate(inner);
      next = program_.sections[inner].last;
    }
    while (next < section.last) start(next++);
    Values results;
    for (uint32_t index = section.first; index < section.last; ++index) {
      results.emplace(index, take(index, References::kPassOn));
    }
    return results;
  }

 private:
  void delegate(uint32_t number) {
    const Section& section = program_.sections[number];
    Values known;
    for (uint32_t index = section.first; index < section.last; ++index) {
      const Operation& operation = program_.operations[index];
      for (const uint32_t input : operation.inputs) {
        if (input < section.first) known.emplace(input, take(input, operation.references));
      }
    }
    if (section.way == Way::kAsync) {
      const auto results = agent_.async<oversee>(section.foreman, program_, number, known);
      for (uint32_t index = section.first; index < section.last; ++index) {
        coming_[index] = [results, index] { return Value(results.wait().at(index)); };
      }
    } else {
      values_.merge(agent_.sync<oversee>(section.foreman, program_, number, known));
    }
  }

  void start(uint32_t index) {
    const Operation& operation = program_.operations[index];
    const int32_t worker = operation.worker;
    const uint64_t id = program_.id;
    std::vector<Value> inputs;
    for (const uint32_t each : operation.inputs) inputs.push_back(take(each, operation.references));
    if (operation.way == Way::kHere) {
      values_.emplace(index, Value(compute(id, operation, inputs)));
    } else if (operation.way == Way::kSync) {
      values_.emplace(index, Value(agent_.sync<compute>(worker, id, operation, inputs)));
    } else if (operation.way == Way::kRemote) {
      values_.emplace(index, Value(remote<compute>(agent_, worker, id, operation, inputs)));
    } else {
      const auto result = agent_.async<compute>(worker, id, operation, inputs);
      coming_[index] = [result] { return Value(result.wait()); };
    }
  }

  Value take(uint32_t index, References references) {
    if (const auto coming = coming_.find(index); coming != coming_.end()) {
      values_.emplace(index, coming->second());
      coming_.erase(coming);
    }
    Value& value = values_.at(index);
    if (references == References::kFetch) value = Value(tensor_of(value));
    return value;
  }

  Agent& agent_;
  const Program& program_;
  Values values_;
  std::map<uint32_t, std::function<Value()>> coming_;  // each waits for its value
};

Values oversee(const Program& program, uint32_t section, const Values& known) {
  return Foreman(current_agent(), program, known).work(section);
}

Values run_spread(Agent& agent, const Program& program) {
  return Foreman(agent, program, {}).work(0);
}

void settle(const Program& program, const Values& results) {
  for (const auto& [index, value] : results) {
    const at::AutoGradMode recorded(program.operations[index].references == References::kFetch);
    tensor_of(value);
  }
}

std::string difference(const at::Tensor& expected, const at::Tensor& got) {
  if (!expected.defined() && !got.defined()) return {};
  if (!expected.defined()) return difference(at::zeros_like(got), got);
  if (!got.defined()) return difference(expected, at::zeros_like(expected));
  const bool coarse = expected.scalar_type() == at::kFloat;
  if (got.scalar_type() == expected.scalar_type() && got.sizes() == expected.sizes() &&
      at::allclose(got, expected, coarse ? 1e-5 : 1e-9, coarse ? 1e-5 : 1e-12)) {
    return {};
  }
  return c10::str("expected\n", expected, "\ngot\n", got);
}

}  // namespace weft::random_graphs
