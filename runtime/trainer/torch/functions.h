// The functions that blocks are made of and LibTorch has not: each knows its own gradient, so that backward needs
// little of forward, and computes the same in every release of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/model_config.h"

namespace penstock::trainer {

// In 2 of 200 processes the first loss that several threads computed was off by 3e-6 of it; in none of 300 that called
// this before. Presumably MKL's vector functions choose their code when they are first called, and two threads that are
// first at once may choose differently. That is a guess.
void prepare_kernels();

// x / root mean square of x over the last dimension, computed in fp32. factor: rounded, times `weight`, as Llama has
// it; factor_less_one: times 1 + `weight`, rounded, as Gemma has it.
enum class NormWeight : uint8_t { factor, factor_less_one };
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    NormWeight meaning = NormWeight::factor);

// What positions mean, on the device, to sequences of one length, or to the documents that are packed into them.
struct Positions {
  struct Turns {
    at::Tensor cosine, sine;  // [length, 1, pairs] or [batch, length, 1, pairs] fp32; undefined where learned
  };
  Turns turns;
  Turns window_turns;              // of layers with a window
  at::Tensor places;               // [batch, length] int64; undefined where every sequence is one document
  std::vector<int64_t> documents;  // where each begins, among all tokens of a batch; empty likewise
  std::vector<size_t> sequences;   // of those that are remembered (KeyValues): whose tokens each document is
};
Positions make_positions(const ModelConfig& config, int64_t length, const at::Device& device = at::kCPU);
// REQUIRES: every sequence begins with position 0, and positions rise by 1 or begin again with 0.
Positions make_positions(const ModelConfig& config, const MicroBatch& batch, const at::Device& device = at::kCPU);
// Tokens of one sequence, after `first` others of it.
struct TokenRun {
  size_t sequence = 0;
  int64_t first = 0;
  int64_t count = 0;
};
// Of a batch of one row, in which the runs stand one after another, as documents.
Positions make_positions(const ModelConfig& config, std::span<const TokenRun> runs,
                         const at::Device& device = at::kCPU);

// Rotates the pairs (i, i + head_size / 2) of x [batch, length, heads, head_size]; computed in fp32 and rounded once.
at::Tensor rotated(const at::Tensor& x, const Positions::Turns& turns);

// Zero with probability `p`, else x / (1 - p); element i by the i-th number of stream `key`. Backward draws the same
// numbers again.
at::Tensor dropped(const at::Tensor& x, double p, uint64_t key);

// A place in a graph for x [rows, in] times `matrix` [in, out], plus `bias` where it is defined. Gradients flow as
// through at::addmm() and at::mm(), to the bit, which need nothing of the product; its values are none.
at::Tensor product_without_values(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias);

// stream_bits() of elements [first, first + count), by LibTorch's own operations: int64, each below 2^32.
at::Tensor stream_bits_of(uint64_t key, int64_t first, int64_t count, const at::Device& device);

}  // namespace penstock::trainer
