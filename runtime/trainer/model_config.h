// ModelConfig: what a decoder-only transformer computes, apart from its weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::trainer {

// gpt2: LayerNorm, one matrix for query, key and value, learned positions, two matrices in the feed-forward part.
// llama: RMSNorm, rotary positions, grouped queries, a gated feed-forward part.
enum class BlockKind : uint8_t { gpt2, llama };

enum class Activation : uint8_t { gelu_tanh, gelu, silu };

enum class RopeKind : uint8_t { plain, linear, dynamic, yarn, llama3 };

// Rotary positions: the angle of pair i at position p is p times the i-th of rope_frequencies().
struct Rope {
  RopeKind kind = RopeKind::plain;
  double theta = 10000;
  double factor = 1;
  double original_positions = 0;                               // of the training that the scaling stretches
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  double attention_factor = 1;                                 // yarn: scales cosine and sine
  bool truncate = true;                                        // yarn
};

struct ModelConfig {
  std::string architecture;  // Hugging Face's class, LlamaForCausalLM
  BlockKind block = BlockKind::llama;
  uint32_t layers = 0;
  uint32_t hidden = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_size = 0;
  uint32_t ffn = 0;
  uint32_t vocab = 0;
  uint32_t positions = 0;  // learned ones, or those that rotary positions were made for
  double norm_epsilon = 1e-5;
  Activation activation = Activation::silu;
  bool tied = false;
  bool qkv_bias = false, out_bias = false, ffn_bias = false, qk_norm = false;
  Rope rope;
  std::vector<uint32_t> windows;         // by layer, how many positions one sees, itself included; 0: all before it
  std::vector<double> attention_scales;  // by layer
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  double initializer_range = 0.02;
};

// Reads Hugging Face's config.json. An architecture that is not supported is refused by its name, together with what
// is; so is a value that would make the model compute something else than we do.
Result<ModelConfig> parse_model_config(const std::string& json);

// One per pair of a head's elements. `length` is the sequence's, which dynamic scaling depends on.
std::vector<float> rope_frequencies(const ModelConfig& config, uint64_t length);

}  // namespace penstock::trainer
