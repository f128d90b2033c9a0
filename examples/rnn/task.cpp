// SPDX-License-Identifier: BSD-3-Clause
#include "task.h"

#include <array>
#include <stdexcept>

#include <ATen/Functions.h>

namespace {

// Of the tutorial.
constexpr int64_t kSequence = 5, kPositions = 3;

// Of a text.
constexpr ModelSizes kTextSizes{.tokens = 0, .embedding = 64, .hidden = 128, .layers = 2};
constexpr int64_t kStreams = 16;
constexpr int64_t kSteps = 32;  // that gradients go back in time

// The bytes that occur, numbered.
class Alphabet {
 public:
  explicit Alphabet(const std::string& text) {
    numbers_.fill(-1);
    for (const char byte : text) {
      int64_t& number = numbers_[static_cast<unsigned char>(byte)];
      if (number < 0) number = size_++;
    }
  }
  int64_t size() const { return size_; }
  at::Tensor encode(const std::string& text) const {
    at::Tensor numbers = at::empty({static_cast<int64_t>(text.size())}, at::kLong);
    auto* number = numbers.data_ptr<int64_t>();
    for (const char byte : text) *number++ = numbers_[static_cast<unsigned char>(byte)];
    return numbers;
  }

 private:
  std::array<int64_t, 256> numbers_;
  int64_t size_ = 0;
};

}  // namespace

at::Tensor Task::loss(const at::Tensor& output, const at::Tensor& target) const {
  return at::cross_entropy_loss(output.movedim(classes, 1), target);
}

Task tutorial_task(int64_t batches, double dropout, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Task task{.sizes = {.dropout = dropout}, .hidden = {}, .batches = {}};
  const auto state = [&] {
    return at::randn({task.sizes.layers, kPositions, task.sizes.hidden}, generator);
  };
  std::get<0>(task.hidden) = state();
  std::get<1>(task.hidden) = state();
  for (int64_t i = 0; i < batches; ++i) {
    at::Tensor tokens =
        at::randint(task.sizes.tokens, {kSequence, kPositions}, generator, at::kLong);
    at::Tensor target =
        at::randint(kPositions, {kSequence, task.sizes.tokens}, generator, at::kLong);
    task.batches.push_back({std::move(tokens), std::move(target)});
  }
  return task;
}

Task text_task(const std::string& text, double dropout) {
  const Alphabet alphabet(text);
  const int64_t length = static_cast<int64_t>(text.size()) / kStreams;
  if (length <= kSteps) {
    throw std::runtime_error("the text has only " + std::to_string(text.size()) + " bytes");
  }
  Task task{.sizes = kTextSizes,
            .hidden = {},
            .batches = {},
            .report = Task::Report::kPerplexity,
            .classes = 2};
  task.sizes.tokens = alphabet.size();
  task.sizes.dropout = dropout;
  const at::Tensor start = at::zeros({task.sizes.layers, kStreams, task.sizes.hidden});
  task.hidden = {start, start};
  const at::Tensor streams =
      alphabet.encode(text).narrow(0, 0, length * kStreams).view({kStreams, length}).t();
  for (int64_t at = 0; at + kSteps < length; at += kSteps) {
    task.batches.push_back({streams.narrow(0, at, kSteps).contiguous(),
                            streams.narrow(0, at + 1, kSteps).contiguous()});
  }
  return task;
}
