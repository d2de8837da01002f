// ModelShape: the sizes of a decoder-only transformer, and what follows from them: parameters, arithmetic, activations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tiering/state_layout.h"
#include "tiering/status.h"

namespace penstock::tools {

// LoRA on every matrix of the blocks but a router: two factors of `rank`, which are trained; all else is frozen.
struct AdapterShape {
  uint64_t rank = 0;
  std::optional<BlockCode> base_code = {};  // what the blocks' matrices rest in; none: bf16
};

struct ModelShape {
  std::string name;
  uint64_t layers = 0;
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_size = 0;
  uint64_t ffn = 0;  // of one expert
  uint64_t vocab = 0;
  uint64_t positions = 0;  // learned; 0: rotary or none
  uint64_t experts = 1, experts_active = 1;
  uint64_t shared_ffn = 0;  // of an expert that every token passes
  bool shared_gate = false;
  bool gated = true;   // three ffn matrices (SwiGLU) instead of two
  bool tied = false;   // the head's weight is the embedding's
  uint64_t norms = 2;  // of a block
  bool embedding_norm = false;
  bool qkv_bias = false, out_bias = false, ffn_bias = false, norm_bias = false, head_bias = false;
  bool qk_norm = false;
  std::string note = {};  // what the sizes leave out, for the user; "" for nothing

  // Refuses sizes whose products cannot be counted, and models that are too large to be planned: the largest of today
  // have a tenth of kParametersMost.
  static constexpr uint64_t kLayersMost = uint64_t{1} << 11, kParametersMost = 10'000'000'000'000;
  Status validate() const;

  uint64_t embedding_parameters() const;
  uint64_t block_parameters() const;
  uint64_t head_parameters() const;  // with the last norm; without what it borrows from the embedding
  uint64_t parameters() const;
  uint64_t active_parameters() const;        // that one token is computed with
  uint64_t block_vector_parameters() const;  // norms and biases, which stay in bf16 where matrices rest in codes

  // Of one block, with the rank given: each matrix [in, out] gets rank * (in + out).
  uint64_t block_adapter_parameters(uint64_t rank) const;
  uint64_t smallest_side() const;  // of a matrix that gets adapters: what a rank is at most

  // Of one token. Attention is causal: on average a token sees half of the sequence.
  double block_forward_flops(uint64_t sequence) const;
  double head_forward_flops() const;
  double block_adapter_forward_flops(uint64_t rank) const;
  // What backward needs of one block's forward, 16-bit, attention's matrix recomputed in its kernel.
  uint64_t block_activation_bytes() const;
  uint64_t boundary_bytes() const;

 private:
  uint64_t attention_matrices() const;
  // Inputs and outputs of the matrices that get adapters.
  uint64_t attention_adapter_sides() const;
  uint64_t ffn_adapter_sides(uint64_t width) const;
  uint64_t ffn_matrices(uint64_t width) const { return (gated ? 3 : 2) * hidden * width; }
  uint64_t norm_parameters() const { return hidden * (norm_bias ? 2 : 1); }
};

}  // namespace penstock::tools
