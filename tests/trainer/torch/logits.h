// The logits of a whole sequence, computed anew: what other implementations and generate() are compared with.
#pragma once

#include <vector>

#include "runtime/trainer/torch/block.h"
#include "runtime/trainer/torch/embedding.h"
#include "runtime/trainer/torch/head.h"
#include "runtime/trainer/torch/refusals.h"
#include "runtime/trainer/torch/tensors.h"

namespace penstock::trainer {

// Of a micro-batch, [tokens, vocab] as fp32.
inline Result<std::vector<float>> compute_logits(const Model& model, EngineVerbs& engine, const MicroBatch& batch) {
  return without_exceptions(nullptr, [&]() -> Result<std::vector<float>> {
    const at::Tensor tokens = token_tensor(batch);
    const at::Device device = engine.accelerator().device();
    const Positions positions = make_positions(model.config, batch, device);
    const DropoutKeys keys;
    at::Tensor hidden;
    for (uint32_t number = 0; number < model.uses.size(); ++number) {
      const ComputePass pass{Direction::forward, number, 0};
      PENSTOCK_TRY_ASSIGN(weights, engine.acquire(pass));
      const ModelUse& use = model.uses[number];
      const WeightTensors views = views_of(model, weights, device);
      if (use.kind == UseKind::embedding)
        hidden = embedding_forward(model.config, views, tokens, positions.places, keys);
      else if (use.kind == UseKind::block)
        hidden = block_forward(model.config, use.layer, views, hidden, positions, keys);
      else
        hidden = head_logits(model.config, views, hidden).to(at::kFloat).contiguous();
      PENSTOCK_TRY(engine.release(pass));
    }
    hidden = hidden.to(at::kCPU);
    const float* values = hidden.const_data_ptr<float>();
    return std::vector<float>(values, values + hidden.numel());
  });
}

}  // namespace penstock::trainer
