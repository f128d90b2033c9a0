// A language model of three parts: an embedding table, an LSTM and a decoder. The parts may be
// modules of this process or remote ones; the model reads the same.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

struct ModelSizes {
  int64_t tokens = 10;
  int64_t embedding = 2;
  int64_t hidden = 3;
  int64_t layers = 4;
  double dropout = 0.5;
};

// From a generator of the module's own: a part has the same weights wherever it is made.
class Weights {
 public:
  explicit Weights(uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}
  void draw(const at::Tensor& weight, double bound) {
    const at::NoGradGuard initialising;
    weight.uniform_(-bound, bound, generator_);
  }

 private:
  at::Generator generator_;
};

struct EmbeddingTable : torch::nn::Module {
  EmbeddingTable(const ModelSizes& sizes, uint64_t seed)
      : encoder(register_module("encoder", torch::nn::Embedding(sizes.tokens, sizes.embedding))),
        dropout(register_module("dropout", torch::nn::Dropout(sizes.dropout))) {
    Weights(seed).draw(encoder->weight, 0.1);
  }
  at::Tensor forward(const at::Tensor& tokens) { return dropout(encoder(tokens)); }

  torch::nn::Embedding encoder;
  torch::nn::Dropout dropout;
};

struct Decoder : torch::nn::Module {
  Decoder(const ModelSizes& sizes, uint64_t seed)
      : decoder(register_module("decoder", torch::nn::Linear(sizes.hidden, sizes.tokens))),
        dropout(register_module("dropout", torch::nn::Dropout(sizes.dropout))) {
    Weights(seed).draw(decoder->weight, 0.1);
    Weights(seed).draw(decoder->bias, 0);
  }
  at::Tensor forward(const at::Tensor& output) { return decoder(dropout(output)); }

  torch::nn::Linear decoder;
  torch::nn::Dropout dropout;
};

inline torch::nn::LSTM make_lstm(const ModelSizes& sizes, uint64_t seed) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(sizes.embedding, sizes.hidden)
                           .num_layers(sizes.layers)
                           .dropout(sizes.dropout));
  Weights weights(seed);
  for (const at::Tensor& weight : lstm->parameters())
    weights.draw(weight, 1 / std::sqrt(static_cast<double>(sizes.hidden)));
  return lstm;
}

using Hidden = std::tuple<at::Tensor, at::Tensor>;  // the LSTM's state between batches

template <typename Table, typename Output>
struct Model {
  /// Scores of every token, and the new hidden state in place of the old.
  at::Tensor forward(const at::Tensor& tokens, Hidden& hidden) {
    const at::Tensor embedded = table.forward(tokens);
    auto [output, next] = lstm(embedded, hidden);
    hidden = next;
    return decoder.forward(output);
  }

  Table table;
  torch::nn::LSTM lstm;
  Output decoder;
};
