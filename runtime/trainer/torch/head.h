// A model's last end: hidden values become logits, and the loss of what should follow.
#pragma once

#include <span>

#include "runtime/trainer/torch/block.h"
#include "runtime/trainer/torch/ends.h"

namespace penstock::trainer {

// Logits [tokens, vocab] of hidden values [sequences, length, hidden], in the model's dtype.
at::Tensor head_logits(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden);

// The sum over supervised targets of -log(probability), a double: nobody waits for it here.
at::Tensor head_loss(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden,
                     std::span<const int32_t> targets, const EndChunks& chunks);

struct HeadBackward {
  at::Tensor loss;    // as head_loss() gives it
  at::Tensor hidden;  // gradient of the head's input; undefined where it is not needed
};
enum class NeedsHidden : uint8_t { yes, no };
// Gradients of `scale` x loss.
Result<HeadBackward> head_backward(const Model& model, const WeightTensors& weights, const at::Tensor& hidden,
                                   std::span<const int32_t> targets, double scale, NeedsHidden need,
                                   const EndChunks& chunks, const TakeRows& take);

}  // namespace penstock::trainer
