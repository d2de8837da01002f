#include "tools/plan/model_shape.h"

#include <algorithm>
#include <initializer_list>

namespace penstock::tools {

Status ModelShape::validate() const {
  if (layers > kLayersMost) {
    return Status(Code::kUsage, text("model shape: ", layers, " layers: at most ", kLayersMost, " expected"),
                  "fewer layers");
  }
  // In doubles, which do not wrap around. Factors that are nothing count as one, so that every size is bounded.
  auto product = [](std::initializer_list<uint64_t> sizes) {
    double all = 1;
    for (uint64_t size : sizes) all *= static_cast<double>(size > 0 ? size : 1);
    return all;
  };
  const double block = product({4, hidden, std::max(heads, kv_heads), head_size}) + product({3, hidden, experts, ffn}) +
                       product({3, hidden, shared_ffn});
  const double all = product({hidden, vocab}) + product({hidden, positions}) + static_cast<double>(layers) * block;
  const double most = static_cast<double>(kParametersMost);
  if (all <= 2 * most && parameters() <= kParametersMost) return Status();
  return Status(Code::kUsage, text("model shape: more parameters than the ", kParametersMost, " that can be planned"),
                "smaller sizes");
}

uint64_t ModelShape::attention_matrices() const {
  return 2 * hidden * heads * head_size + 2 * hidden * kv_heads * head_size;
}

uint64_t ModelShape::embedding_parameters() const {
  return (vocab + positions) * hidden + (embedding_norm ? norm_parameters() : 0);
}

uint64_t ModelShape::block_parameters() const {
  uint64_t sum = block_vector_parameters() + attention_matrices() + experts * ffn_matrices(ffn);
  if (experts > 1) sum += hidden * experts;
  if (shared_ffn > 0) sum += ffn_matrices(shared_ffn) + (shared_gate ? hidden : 0);
  return sum;
}

uint64_t ModelShape::head_parameters() const {
  return norm_parameters() + (tied ? 0 : vocab * hidden) + (head_bias ? vocab : 0);
}

uint64_t ModelShape::parameters() const {
  return embedding_parameters() + layers * block_parameters() + head_parameters();
}

uint64_t ModelShape::active_parameters() const {
  return parameters() - layers * (experts - experts_active) * ffn_matrices(ffn);
}

uint64_t ModelShape::block_vector_parameters() const {
  uint64_t sum = norms * norm_parameters();
  if (qkv_bias) sum += (heads + 2 * kv_heads) * head_size;
  if (out_bias) sum += hidden;
  if (qk_norm) sum += 2 * head_size;
  if (ffn_bias) sum += experts * (ffn + hidden);
  return sum;
}

uint64_t ModelShape::attention_adapter_sides() const {
  return 4 * hidden + 2 * heads * head_size + 2 * kv_heads * head_size;
}

uint64_t ModelShape::ffn_adapter_sides(uint64_t width) const { return (gated ? 3 : 2) * (hidden + width); }

uint64_t ModelShape::block_adapter_parameters(uint64_t rank) const {
  uint64_t sides = attention_adapter_sides() + experts * ffn_adapter_sides(ffn);
  if (shared_ffn > 0) sides += ffn_adapter_sides(shared_ffn);
  return rank * sides;
}

uint64_t ModelShape::smallest_side() const {
  uint64_t side = std::min({hidden, kv_heads * head_size, heads * head_size, ffn});
  return shared_ffn > 0 ? std::min(side, shared_ffn) : side;
}

double ModelShape::block_adapter_forward_flops(uint64_t rank) const {
  uint64_t sides = attention_adapter_sides() + experts_active * ffn_adapter_sides(ffn);
  if (shared_ffn > 0) sides += ffn_adapter_sides(shared_ffn);
  return 2.0 * static_cast<double>(rank) * static_cast<double>(sides);
}

double ModelShape::block_forward_flops(uint64_t sequence) const {
  uint64_t matrices = attention_matrices() + experts_active * ffn_matrices(ffn) + ffn_matrices(shared_ffn);
  if (experts > 1) matrices += hidden * experts;
  // Scores and their use: 2 flops for each of two products, over half of the sequence.
  const double attention = 2.0 * static_cast<double>(sequence) * static_cast<double>(heads * head_size);
  return 2.0 * static_cast<double>(matrices) + attention;
}

double ModelShape::head_forward_flops() const { return 2.0 * static_cast<double>(vocab) * static_cast<double>(hidden); }

uint64_t ModelShape::block_activation_bytes() const {
  // The block's input, both norms' outputs, the input of the second; queries, keys, values and attention's output.
  const uint64_t attention = 4 * hidden + (2 * heads + 2 * kv_heads) * head_size;
  // Gated: gate, up, the activated gate, their product. Else: before and after the activation.
  const uint64_t width = experts_active * ffn + shared_ffn;
  return 2 * (attention + (gated ? 4 : 2) * width);
}

uint64_t ModelShape::boundary_bytes() const { return 2 * hidden; }

}  // namespace penstock::tools
