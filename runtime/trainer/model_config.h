// ModelConfig: what a decoder-only transformer computes, apart from its weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/rope.h"
#include "tiering/status.h"

namespace penstock::trainer {

// gpt2: LayerNorm, one matrix for query, key and value, learned positions, two matrices in the feed-forward part.
// llama: RMSNorm, rotary positions, grouped queries, a gated feed-forward part. Gemma's blocks are such blocks.
enum class BlockKind : uint8_t { gpt2, llama };

enum class Activation : uint8_t { gelu_tanh, gelu, silu };

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
  bool norms_behind = false;     // what either part of a block gives is normed before it is added
  bool norms_less_one = false;   // a norm's weights are its factors less one
  double embedding_scale = 1;    // rounded to the model's dtype
  double attention_softcap = 0;  // scores and logits x become cap * tanh(x / cap); 0: they stay
  double logit_softcap = 0;
  Rope rope;
  std::optional<Rope> window_rope;       // of layers with a window, where theirs is another
  std::vector<uint32_t> windows;         // by layer, how many positions one sees, itself included; 0: all before it
  std::vector<double> attention_scales;  // by layer
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  double initializer_range = 0.02;
};

// Reads Hugging Face's config.json. An architecture that is not supported is refused by its name, together with what
// is; so is a value that would make the model compute something else than we do.
Result<ModelConfig> parse_model_config(const std::string& json);

}  // namespace penstock::trainer
