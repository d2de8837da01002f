#include "runtime/trainer/torch/block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include "runtime/trainer/counter_random.h"

namespace penstock::trainer {
namespace {

using enum WeightRole;

// Where in a block values are dropped.
enum Site : uint32_t { attention_weights, attention_out, ffn_out };

at::Tensor projected(const WeightTensors& weights, const at::Tensor& x, WeightRole matrix, WeightRole bias) {
  const at::Tensor& b = weights[bias];
  return at::linear(x, weights[matrix], b.defined() ? std::optional<at::Tensor>(b) : std::nullopt);
}

// By a matrix that is input by output.
at::Tensor multiplied(const WeightTensors& weights, const at::Tensor& x, WeightRole matrix, WeightRole bias) {
  const int64_t out = weights[matrix].size(1);
  return at::addmm(weights[bias], x.reshape({-1, x.size(-1)}), weights[matrix]).view({x.size(0), x.size(1), out});
}

at::Tensor layer_norm(const ModelConfig& config, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, config.norm_epsilon);
}

at::Tensor activated(const ModelConfig& config, const at::Tensor& x) {
  return config.activation == Activation::silu ? at::silu(x)
                                               : at::gelu(x, config.activation == Activation::gelu ? "none" : "tanh");
}

AttentionShape attention_of(const ModelConfig& config, uint32_t layer, const Positions& positions,
                            const DropoutKeys& keys) {
  return {.scale = config.attention_scales[layer],
          .window = config.windows[layer],
          .dropout = keys.training ? config.attention_dropout : 0,
          .dropout_key = keys.of(layer + 1, attention_weights),
          .documents = positions.documents};
}

at::Tensor gpt2_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                        const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys) {
  const int64_t batch = hidden.size(0), length = hidden.size(1), heads = config.heads, size = config.head_size;
  const double dropout = keys.training ? config.residual_dropout : 0;
  const at::Tensor normed = layer_norm(config, hidden, weights[norm1], weights[norm1_bias]);
  const at::Tensor all =
      multiplied(weights, normed, query_key_value, query_key_value_bias).view({batch, length, 3, heads, size});
  const at::Tensor attention =
      attended(all.select(2, 0), all.select(2, 1), all.select(2, 2), attention_of(config, layer, positions, keys));
  const at::Tensor between =
      hidden + dropped(multiplied(weights, attention, out, out_bias), dropout, keys.of(layer + 1, attention_out));
  const at::Tensor normed2 = layer_norm(config, between, weights[norm2], weights[norm2_bias]);
  const at::Tensor inner = activated(config, multiplied(weights, normed2, up, up_bias));
  return between + dropped(multiplied(weights, inner, down, down_bias), dropout, keys.of(layer + 1, ffn_out));
}

at::Tensor llama_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                         const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys) {
  const int64_t batch = hidden.size(0), length = hidden.size(1), size = config.head_size;
  const at::Tensor normed = rms_norm(hidden, weights[norm1], config.norm_epsilon);
  auto heads_of = [&](WeightRole matrix, WeightRole bias, int64_t heads) {
    return projected(weights, normed, matrix, bias).view({batch, length, heads, size});
  };
  at::Tensor q = heads_of(query, query_bias, config.heads), k = heads_of(key, key_bias, config.kv_heads);
  const at::Tensor v = heads_of(value, value_bias, config.kv_heads);
  if (config.qk_norm) {
    q = rms_norm(q, weights[query_norm], config.norm_epsilon);
    k = rms_norm(k, weights[key_norm], config.norm_epsilon);
  }
  const at::Tensor attention =
      attended(rotated(q, positions), rotated(k, positions), v, attention_of(config, layer, positions, keys));
  const at::Tensor between = hidden + projected(weights, attention, out, out_bias);
  const at::Tensor normed2 = rms_norm(between, weights[norm2], config.norm_epsilon);
  const at::Tensor inner =
      activated(config, projected(weights, normed2, gate, gate_bias)) * projected(weights, normed2, up, up_bias);
  return between + projected(weights, inner, down, down_bias);
}

}  // namespace

uint64_t DropoutKeys::of(uint32_t use, uint32_t site) const { return stream_key(seed, step, micro_batch, use, site); }

at::Tensor block_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                         const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys) {
  return config.block == BlockKind::gpt2 ? gpt2_forward(config, layer, weights, hidden, positions, keys)
                                         : llama_forward(config, layer, weights, hidden, positions, keys);
}

at::Tensor last_norm(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden) {
  const at::Tensor& weight = weights[WeightRole::last_norm];
  return config.block == BlockKind::gpt2 ? layer_norm(config, hidden, weight, weights[last_norm_bias])
                                         : rms_norm(hidden, weight, config.norm_epsilon);
}

}  // namespace penstock::trainer
