// Transformer blocks as pure functions of weights and hidden values.
#pragma once

#include "runtime/trainer/torch/attention.h"
#include "runtime/trainer/torch/functions.h"
#include "runtime/trainer/torch/tensors.h"

namespace penstock::trainer {

// What dropout is drawn by, besides the place in the model. Not training: nothing is dropped.
struct DropoutKeys {
  bool training = false;
  uint64_t seed = 0, step = 0, micro_batch = 0;

  uint64_t of(uint32_t use, uint32_t site) const;
};

// What is wanted of a block: what it computes, or its graph, to go back through. The graph's last product, by which
// nothing else is computed, has no values then.
enum class BlockResult : uint8_t { values, graph };

// hidden [batch, length, hidden] before block `layer` becomes the same behind it. `past`: of the positions' sequences.
at::Tensor block_forward(const ModelConfig& config, uint32_t layer, const WeightTensors& weights,
                         const at::Tensor& hidden, const Positions& positions, const DropoutKeys& keys,
                         KeyValues* past = nullptr, BlockResult result = BlockResult::values);

// The norm before the head.
at::Tensor last_norm(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden);

}  // namespace penstock::trainer
