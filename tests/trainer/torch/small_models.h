// Models that a test can compute with, each with something that the others have not.
#pragma once

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>

#include <ostream>
#include <string>
#include <vector>

#include "runtime/trainer/model.h"
#include "runtime/trainer/torch/tensors.h"
#include "tests/trainer/torch/moving_weights.h"

namespace penstock::trainer {

struct SmallModel {
  std::string name;
  std::string config;  // config.json
};
inline void PrintTo(const SmallModel& model, std::ostream* out) { *out << model.name; }

inline ModelConfig config_of(const SmallModel& model) { return *parse_model_config(model.config); }

inline std::vector<SmallModel> small_models() {
  const std::string llama =
      R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "vocab_size": 131, "max_position_embeddings": 64, )";
  return {
      {"Gpt2", R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 131,
                   "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})"},
      {"Gpt2Dropout", R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 3, "n_head": 4,
                          "vocab_size": 131, "n_positions": 64, "resid_pdrop": 0.2, "embd_pdrop": 0.1,
                          "attn_pdrop": 0.3, "tie_word_embeddings": false})"},
      {"Llama", R"({"architectures": ["LlamaForCausalLM"], )" + llama +
                    R"("num_key_value_heads": 2, "mlp_bias": true, "attention_bias": true,
                       "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000, "factor": 8,
                        "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}})"},
      {"Mistral", R"({"architectures": ["MistralForCausalLM"], )" + llama +
                      R"("num_key_value_heads": 1, "sliding_window": 7, "attention_dropout": 0})"},
      {"Qwen2", R"({"architectures": ["Qwen2ForCausalLM"], )" + llama +
                    R"("num_key_value_heads": 4, "tie_word_embeddings": true})"},
      {"Qwen3", R"({"architectures": ["Qwen3ForCausalLM"], )" + llama +
                    R"("num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true})"},
      {"Gemma2", R"({"architectures": ["Gemma2ForCausalLM"], )" + llama +
                     R"("num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 7,
                        "attn_logit_softcapping": 2, "final_logit_softcapping": 3})"},
      {"Gemma3", R"({"architectures": ["Gemma3ForCausalLM"], )" + llama +
                     R"("num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 7,
                        "sliding_window_pattern": 2, "final_logit_softcapping": null, "rope_local_base_freq": 100})"},
  };
}

// Weights around what training would have, also where they begin with zeros or ones.
inline void fill_with_noise(const Model& model, MovingWeights& weights) {
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (const ModelParameter& parameter : model.units[unit].parameters) {
      const std::vector<int64_t> shape(parameter.shape.begin(), parameter.shape.end());
      auto* data = weights.weights(unit).data() + parameter.first_element * bytes_of(model.dtype);
      at::from_blob(data, shape, at::TensorOptions(scalar_type(model.dtype)))
          .copy_(at::randn(shape).mul(0.1).add(parameter.initial == Initial::ones ? 1 : 0));
    }
  }
}

}  // namespace penstock::trainer
