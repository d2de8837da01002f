#include "runtime/trainer/model.h"

#include <algorithm>
#include <cmath>

#include "tiering/tier.h"

namespace penstock::trainer {
namespace {

// Adds parameters to a unit, one behind the other.
class UnitMaker {
 public:
  UnitMaker(ModelUnit& unit, const ModelConfig& config, uint64_t alignment_elements)
      : unit_(unit), config_(config), alignment_elements_(alignment_elements) {}

  void add(WeightRole role, std::string name, std::vector<uint64_t> shape, Initial initial, double deviation = 0) {
    ModelParameter parameter{.name = std::move(name),
                             .role = role,
                             .shape = std::move(shape),
                             .initial = initial,
                             .deviation = deviation,
                             .first_element = unit_.elements};
    parameter.elements = 1;
    for (uint64_t size : parameter.shape) parameter.elements *= size;
    unit_.elements += round_up(parameter.elements, alignment_elements_);
    unit_.parameters.push_back(std::move(parameter));
  }

  void matrix(WeightRole role, std::string name, uint64_t rows, uint64_t columns, double scale = 1) {
    add(role, std::move(name), {rows, columns}, Initial::normal, config_.initializer_range * scale);
  }
  void vector(WeightRole role, std::string name, uint64_t size, Initial initial) {
    add(role, std::move(name), {size}, initial);
  }
  void bias_if(bool there, WeightRole role, std::string name, uint64_t size) {
    if (there) vector(role, std::move(name), size, Initial::zeros);
  }

 private:
  ModelUnit& unit_;
  const ModelConfig& config_;
  const uint64_t alignment_elements_;
};

void add_gpt2_block(UnitMaker& unit, const ModelConfig& config, const std::string& prefix) {
  using enum WeightRole;
  const uint64_t hidden = config.hidden, ffn = config.ffn;
  // What each block adds to the residual is scaled down by the number of such additions, as GPT-2 was.
  const double onto_residual = 1 / std::sqrt(2.0 * config.layers);
  unit.vector(norm1, prefix + "ln_1.weight", hidden, Initial::ones);
  unit.vector(norm1_bias, prefix + "ln_1.bias", hidden, Initial::zeros);
  unit.matrix(query_key_value, prefix + "attn.c_attn.weight", hidden, 3 * hidden);
  unit.vector(query_key_value_bias, prefix + "attn.c_attn.bias", 3 * hidden, Initial::zeros);
  unit.matrix(out, prefix + "attn.c_proj.weight", hidden, hidden, onto_residual);
  unit.vector(out_bias, prefix + "attn.c_proj.bias", hidden, Initial::zeros);
  unit.vector(norm2, prefix + "ln_2.weight", hidden, Initial::ones);
  unit.vector(norm2_bias, prefix + "ln_2.bias", hidden, Initial::zeros);
  unit.matrix(up, prefix + "mlp.c_fc.weight", hidden, ffn);
  unit.vector(up_bias, prefix + "mlp.c_fc.bias", ffn, Initial::zeros);
  unit.matrix(down, prefix + "mlp.c_proj.weight", ffn, hidden, onto_residual);
  unit.vector(down_bias, prefix + "mlp.c_proj.bias", hidden, Initial::zeros);
}

// A norm begins by changing nothing.
Initial norm_factors(const ModelConfig& config) { return config.norms_less_one ? Initial::zeros : Initial::ones; }

void add_llama_block(UnitMaker& unit, const ModelConfig& config, const std::string& prefix) {
  using enum WeightRole;
  const uint64_t hidden = config.hidden, ffn = config.ffn;
  const uint64_t queries = uint64_t{config.heads} * config.head_size,
                 keys = uint64_t{config.kv_heads} * config.head_size;
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const Initial factors = norm_factors(config);
  unit.vector(norm1, prefix + "input_layernorm.weight", hidden, factors);
  unit.matrix(query, attention + "q_proj.weight", queries, hidden);
  unit.bias_if(config.qkv_bias, query_bias, attention + "q_proj.bias", queries);
  unit.matrix(key, attention + "k_proj.weight", keys, hidden);
  unit.bias_if(config.qkv_bias, key_bias, attention + "k_proj.bias", keys);
  unit.matrix(value, attention + "v_proj.weight", keys, hidden);
  unit.bias_if(config.qkv_bias, value_bias, attention + "v_proj.bias", keys);
  if (config.qk_norm) {
    unit.vector(query_norm, attention + "q_norm.weight", config.head_size, factors);
    unit.vector(key_norm, attention + "k_norm.weight", config.head_size, factors);
  }
  unit.matrix(out, attention + "o_proj.weight", hidden, queries);
  unit.bias_if(config.out_bias, out_bias, attention + "o_proj.bias", hidden);
  // The same name means the norm before the feed-forward part, where there is none behind attention.
  if (config.norms_behind) {
    unit.vector(out_norm, prefix + "post_attention_layernorm.weight", hidden, factors);
    unit.vector(norm2, prefix + "pre_feedforward_layernorm.weight", hidden, factors);
  } else {
    unit.vector(norm2, prefix + "post_attention_layernorm.weight", hidden, factors);
  }
  unit.matrix(gate, mlp + "gate_proj.weight", ffn, hidden);
  unit.bias_if(config.ffn_bias, gate_bias, mlp + "gate_proj.bias", ffn);
  unit.matrix(up, mlp + "up_proj.weight", ffn, hidden);
  unit.bias_if(config.ffn_bias, up_bias, mlp + "up_proj.bias", ffn);
  unit.matrix(down, mlp + "down_proj.weight", hidden, ffn);
  unit.bias_if(config.ffn_bias, down_bias, mlp + "down_proj.bias", hidden);
  if (config.norms_behind) unit.vector(down_norm, prefix + "post_feedforward_layernorm.weight", hidden, factors);
}

}  // namespace

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string words;
  for (uint64_t size : shape) words += (words.empty() ? "" : " x ") + std::to_string(size);
  return words;
}

bool ModelUnit::trainable() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const ModelParameter& p) { return p.trainable; });
}

uint64_t Model::parameters() const {
  uint64_t sum = 0;
  for (const ModelUnit& unit : units)
    for (const ModelParameter& parameter : unit.parameters) sum += parameter.elements;
  return sum;
}

uint64_t Model::trained_parameters() const {
  uint64_t sum = 0;
  for (const ModelUnit& unit : units)
    for (const ModelParameter& parameter : unit.parameters) sum += parameter.trainable ? parameter.elements : 0;
  return sum;
}

Model make_model(const ModelConfig& config, Dtype dtype, uint64_t alignment_elements) {
  CHECK(alignment_elements > 0 && alignment_elements % kParameterAlignmentElements == 0, alignment_elements,
        " elements are no place for parameters to begin at");
  const bool gpt2 = config.block == BlockKind::gpt2;
  const std::string prefix = gpt2 ? "transformer." : "model.";
  Model model{.config = config, .dtype = dtype, .units = {}, .uses = {}};
  auto unit_of = [&](const std::string& name) {
    model.units.push_back({.name = name, .parameters = {}});
    return UnitMaker(model.units.back(), config, alignment_elements);
  };

  UnitMaker embedding = unit_of("embedding");
  embedding.matrix(WeightRole::tokens, prefix + (gpt2 ? "wte.weight" : "embed_tokens.weight"), config.vocab,
                   config.hidden);
  if (gpt2) embedding.matrix(WeightRole::positions, prefix + "wpe.weight", config.positions, config.hidden);
  model.uses.push_back({.name = "embedding", .kind = UseKind::embedding, .units = {0}});

  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = text("block ", layer);
    UnitMaker block = unit_of(name);
    if (gpt2)
      add_gpt2_block(block, config, text(prefix, "h.", layer, "."));
    else
      add_llama_block(block, config, text(prefix, "layers.", layer, "."));
    model.uses.push_back({.name = name, .kind = UseKind::block, .layer = layer, .units = {layer + 1}});
  }

  const uint32_t last = config.layers + 1;
  UnitMaker head = unit_of("head");
  head.vector(WeightRole::last_norm, prefix + (gpt2 ? "ln_f.weight" : "norm.weight"), config.hidden,
              norm_factors(config));
  head.bias_if(gpt2, WeightRole::last_norm_bias, prefix + "ln_f.bias", config.hidden);
  if (!config.tied) head.matrix(WeightRole::head, "lm_head.weight", config.vocab, config.hidden);
  model.uses.push_back({.name = "head", .kind = UseKind::head, .units = {last}});
  if (config.tied) model.uses.back().units.push_back(0);
  return model;
}

}  // namespace penstock::trainer
