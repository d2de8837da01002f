// The functions that blocks are made of and LibTorch has not: each knows its own gradient, so that backward needs
// little of forward, and computes the same in every release of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/model_config.h"
#include "runtime/trainer/torch/key_values.h"

namespace penstock::trainer {

// In 2 of 200 processes the first loss that several threads computed was off by 3e-6 of it; in none of 300 that called
// this before. Presumably MKL's vector functions choose their code when they are first called, and two threads that are
// first at once may choose differently. That is a guess.
void prepare_kernels();

// x / root mean square of x over the last dimension, computed in fp32, rounded, times `weight`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// What positions mean to sequences of one length, or to the documents that are packed into them.
struct Positions {
  at::Tensor cosine, sine;         // [length, 1, pairs] or [batch, length, 1, pairs] fp32; undefined where learned
  at::Tensor places;               // [batch, length] int64; undefined where every sequence is one document
  std::vector<int64_t> documents;  // where each begins, among all tokens of a batch; empty likewise
  std::vector<size_t> sequences;   // of those that are remembered (KeyValues): whose tokens each document is
};
Positions make_positions(const ModelConfig& config, int64_t length);
// REQUIRES: every sequence begins with position 0, and positions rise by 1 or begin again with 0.
Positions make_positions(const ModelConfig& config, const MicroBatch& batch);
// Tokens of one sequence, after `first` others of it.
struct TokenRun {
  size_t sequence = 0;
  int64_t first = 0;
  int64_t count = 0;
};
// Of a batch of one row, in which the runs stand one after another, as documents.
Positions make_positions(const ModelConfig& config, std::span<const TokenRun> runs);

// Rotates the pairs (i, i + head_size / 2) of x [batch, length, heads, head_size]; computed in fp32 and rounded once.
at::Tensor rotated(const at::Tensor& x, const Positions& positions);

// Zero with probability `p`, else x / (1 - p); element i by the i-th number of stream `key`. Backward draws the same
// numbers again.
at::Tensor dropped(const at::Tensor& x, double p, uint64_t key);

struct AttentionShape {
  double scale = 1;
  uint32_t window = 0;  // positions that one sees, itself included; 0: all before it
  double dropout = 0;   // of the attention's weights; then their whole matrix is in memory
  uint64_t dropout_key = 0;
  std::span<const int64_t> documents = {};  // where each begins, among all tokens; empty: every sequence is one
  // What came before documents, each of which is a whole beginning or one token.
  KeyValues* past = nullptr;
  std::span<const size_t> sequences = {};  // of the past, by document
};
// Causal attention within documents of query [batch, length, heads, size] to key and value [batch, length, kv_heads,
// size]; gives [batch, length, heads * size].
at::Tensor attended(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionShape& shape);

}  // namespace penstock::trainer
