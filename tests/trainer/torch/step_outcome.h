// What a training step gives, and what the same is in PyTorch.
#pragma once

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "runtime/trainer/torch/block.h"
#include "runtime/trainer/torch/embedding.h"
#include "runtime/trainer/torch/head.h"
#include "runtime/trainer/torch/train_step.h"
#include "tests/trainer/torch/moving_weights.h"

namespace penstock::trainer {

inline std::vector<MicroBatch> batches_of(const Model& model, uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<MicroBatch> batches(count);
  for (MicroBatch& batch : batches) {
    batch.sequences = 2, batch.length = 20;
    for (int64_t i = 0; i < batch.sequences * batch.length; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random() % model.config.vocab));
      const bool ignored = random() % 4 == 0;
      batch.targets.push_back(ignored ? kIgnored : static_cast<int32_t>(random() % model.config.vocab));
    }
  }
  return batches;
}

struct Outcome {
  StepLoss loss;
  std::map<MovingWeights::GradientKey, std::vector<std::byte>> gradients;
  uint64_t put_bytes = 0;
};

// Gradients of the whole step by unit and parameter, in fp32, from what the engine was given in pieces.
inline std::map<std::pair<uint32_t, uint64_t>, at::Tensor> summed(const Model& model, const Outcome& outcome) {
  std::map<uint32_t, at::Tensor> units;
  for (const auto& [key, bytes] : outcome.gradients) {
    const auto& [use, micro_batch, unit, first] = key;
    if (!units.contains(unit)) units[unit] = at::zeros({static_cast<int64_t>(model.units[unit].elements)}, at::kFloat);
    const auto count = static_cast<int64_t>(bytes.size() / bytes_of(model.dtype));
    const at::Tensor values =
        at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, at::TensorOptions(scalar_type(model.dtype)));
    units[unit].narrow(0, static_cast<int64_t>(first), count).add_(values.to(at::kFloat));
  }
  std::map<std::pair<uint32_t, uint64_t>, at::Tensor> sums;
  for (uint32_t unit = 0; unit < model.units.size(); ++unit)
    for (const ModelParameter& parameter : model.units[unit].parameters)
      if (units.contains(unit))
        sums[{unit, parameter.first_element}] = units[unit].narrow(0, static_cast<int64_t>(parameter.first_element),
                                                                   static_cast<int64_t>(parameter.elements));
  return sums;
}

// One graph from tokens to the mean loss over all supervised tokens. `by_use`: a tied head's matrix is the embedding's.
inline at::Tensor plain_loss(const ModelConfig& config, std::span<const WeightTensors> by_use,
                             std::span<const MicroBatch> batches, uint64_t seed, uint64_t step) {
  const WeightTensors &embedding = by_use.front(), &head = by_use.back();
  at::Tensor loss = at::zeros({}, at::kFloat);
  double supervised = 0;
  for (uint32_t micro_batch = 0; micro_batch < batches.size(); ++micro_batch) {
    const MicroBatch& batch = batches[micro_batch];
    const Positions positions = make_positions(config, batch.length);
    const DropoutKeys keys{.training = true, .seed = seed, .step = step, .micro_batch = micro_batch};
    at::Tensor hidden = at::embedding(embedding[WeightRole::tokens], token_tensor(batch));
    if (embedding[WeightRole::positions].defined())
      hidden = hidden + embedding[WeightRole::positions].narrow(0, 0, batch.length);
    hidden = dropped(hidden * config.embedding_scale, config.embedding_dropout, keys.of(0, 0));
    for (uint32_t layer = 0; layer < config.layers; ++layer)
      hidden = block_forward(config, layer, by_use[layer + 1], hidden, positions, keys);
    hidden = last_norm(config, head, hidden);
    const at::Tensor& matrix = config.tied ? embedding[WeightRole::tokens] : head[WeightRole::head];
    at::Tensor logits = at::linear(hidden, matrix).view({-1, config.vocab});
    if (const double cap = config.logit_softcap; cap > 0) logits = (logits / cap).tanh() * cap;
    at::Tensor targets = at::empty({static_cast<int64_t>(batch.targets.size())}, at::kLong);
    std::copy(batch.targets.begin(), batch.targets.end(), targets.mutable_data_ptr<int64_t>());
    loss = loss + at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, kIgnored);
    supervised += static_cast<double>(batch.supervised());
  }
  return loss / supervised;
}

}  // namespace penstock::trainer
