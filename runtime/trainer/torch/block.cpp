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
constexpr uint32_t kAdapterSite = 256;  // and, behind it, what enters each role's adapter

// The products of a block's inputs with its matrices, adapters included.
class Products {
 public:
  Products(const WeightTensors& weights, uint32_t layer, const DropoutKeys& keys)
      : weights_(weights), layer_(layer), keys_(keys) {}

  at::Tensor projected(const at::Tensor& x, WeightRole matrix, WeightRole bias,
                       BlockResult result = BlockResult::values) const {
    const at::Tensor& b = weights_[bias];
    if (result == BlockResult::graph) return adapted(without_values(x, weights_[matrix].t(), b), x, matrix);
    return adapted(at::linear(x, weights_[matrix], b.defined() ? std::optional<at::Tensor>(b) : std::nullopt), x,
                   matrix);
  }

  // By a matrix that is input by output.
  at::Tensor multiplied(const at::Tensor& x, WeightRole matrix, WeightRole bias,
                        BlockResult result = BlockResult::values) const {
    if (result == BlockResult::graph) return adapted(without_values(x, weights_[matrix], weights_[bias]), x, matrix);
    const int64_t out = weights_[matrix].size(1);
    return adapted(
        at::addmm(weights_[bias], x.reshape({-1, x.size(-1)}), weights_[matrix]).view({x.size(0), x.size(1), out}), x,
        matrix);
  }

 private:
  static at::Tensor without_values(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias) {
    return product_without_values(x.reshape({-1, x.size(-1)}), matrix, bias)
        .view({x.size(0), x.size(1), matrix.size(1)});
  }

  at::Tensor adapted(const at::Tensor& product, const at::Tensor& x, WeightRole matrix) const {
    const auto role = static_cast<uint32_t>(matrix);
    const at::Tensor& a = weights_.adapter_a[role];
    if (!a.defined()) return product;
    const double dropout = keys_.training ? weights_.adapters.dropout : 0;
    const at::Tensor inner = at::linear(dropped(x, dropout, keys_.of(layer_ + 1, kAdapterSite + role)), a);
    return product + at::linear(inner, weights_.adapter_b[role]) * weights_.adapters.scale;
  }

  const WeightTensors& weights_;
  const uint32_t layer_;
  const DropoutKeys& keys_;
};

at::Tensor layer_norm(const ModelConfig& config, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, config.norm_epsilon);
}

at::Tensor rms_normed(const ModelConfig& config, const at::Tensor& x, const at::Tensor& weight) {
  return rms_norm(x, weight, config.norm_epsilon,
                  config.norms_less_one ? NormWeight::factor_less_one : NormWeight::factor);
}

at::Tensor activated(const ModelConfig& config, const at::Tensor& x) {
  return config.activation == Activation::silu ? at::silu(x)
                                               : at::gelu(x, config.activation == Activation::gelu ? "none" : "tanh");
}

AttentionShape attention_of(const ModelConfig& config, uint32_t layer, const Positions& positions,
                            const DropoutKeys& keys, KeyValues* past) {
  return {.scale = config.attention_scales[layer],
          .softcap = config.attention_softcap,
          .window = config.windows[layer],
          .dropout = keys.training ? config.attention_dropout : 0,
          .dropout_key = keys.of(layer + 1, attention_weights),
          .documents = positions.documents,
          .past = past,
          .sequences = positions.sequences};
}

at::Tensor gpt2_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                        const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys, KeyValues* past,
                        BlockResult result) {
  const int64_t batch = hidden.size(0), length = hidden.size(1), heads = config.heads, size = config.head_size;
  const double dropout = keys.training ? config.residual_dropout : 0;
  const at::Tensor normed = layer_norm(config, hidden, weights[norm1], weights[norm1_bias]);
  const Products products(weights, layer, keys);
  const at::Tensor all =
      products.multiplied(normed, query_key_value, query_key_value_bias).view({batch, length, 3, heads, size});
  const at::Tensor attention = attended(all.select(2, 0), all.select(2, 1), all.select(2, 2),
                                        attention_of(config, layer, positions, keys, past));
  const at::Tensor between =
      hidden + dropped(products.multiplied(attention, out, out_bias), dropout, keys.of(layer + 1, attention_out));
  const at::Tensor normed2 = layer_norm(config, between, weights[norm2], weights[norm2_bias]);
  const at::Tensor inner = activated(config, products.multiplied(normed2, up, up_bias));
  return between + dropped(products.multiplied(inner, down, down_bias, result), dropout, keys.of(layer + 1, ffn_out));
}

at::Tensor llama_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                         const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys, KeyValues* past,
                         BlockResult result) {
  const int64_t batch = hidden.size(0), length = hidden.size(1), size = config.head_size;
  const at::Tensor normed = rms_normed(config, hidden, weights[norm1]);
  const Products products(weights, layer, keys);
  auto heads_of = [&](WeightRole matrix, WeightRole bias, int64_t heads) {
    return products.projected(normed, matrix, bias).view({batch, length, heads, size});
  };
  at::Tensor q = heads_of(query, query_bias, config.heads), k = heads_of(key, key_bias, config.kv_heads);
  const at::Tensor v = heads_of(value, value_bias, config.kv_heads);
  if (config.qk_norm) {
    q = rms_normed(config, q, weights[query_norm]);
    k = rms_normed(config, k, weights[key_norm]);
  }
  auto normed_behind = [&](const at::Tensor& x, WeightRole norm) {
    return config.norms_behind ? rms_normed(config, x, weights[norm]) : x;
  };
  const Positions::Turns& turns = config.windows[layer] == 0 ? positions.turns : positions.window_turns;
  const at::Tensor attention =
      attended(rotated(q, turns), rotated(k, turns), v, attention_of(config, layer, positions, keys, past));
  const at::Tensor between = hidden + normed_behind(products.projected(attention, out, out_bias), out_norm);
  const at::Tensor normed2 = rms_normed(config, between, weights[norm2]);
  const at::Tensor inner =
      activated(config, products.projected(normed2, gate, gate_bias)) * products.projected(normed2, up, up_bias);
  if (config.norms_behind) result = BlockResult::values;  // by which the norm's gradient is computed
  return between + normed_behind(products.projected(inner, down, down_bias, result), down_norm);
}

}  // namespace

uint64_t DropoutKeys::of(uint32_t use, uint32_t site) const { return stream_key(seed, step, micro_batch, use, site); }

at::Tensor block_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                         const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys, KeyValues* past,
                         BlockResult result) {
  const auto forward = config.block == BlockKind::gpt2 ? gpt2_forward : llama_forward;
  return forward(config, layer, weights, hidden, positions, keys, past, result);
}

at::Tensor last_norm(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden) {
  const at::Tensor& weight = weights[WeightRole::last_norm];
  return config.block == BlockKind::gpt2 ? layer_norm(config, hidden, weight, weights[last_norm_bias])
                                         : rms_normed(config, hidden, weight);
}

}  // namespace penstock::trainer
