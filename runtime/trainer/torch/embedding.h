// A model's first end: tokens become hidden values.
#pragma once

#include "runtime/trainer/batch.h"
#include "runtime/trainer/torch/block.h"
#include "runtime/trainer/torch/ends.h"

namespace penstock::trainer {

at::Tensor token_tensor(const MicroBatch& batch);  // [sequences, length], in host memory

// `tokens` in host memory, what comes of them on the device of the weights; `places` as in Positions.
at::Tensor embedding_forward(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& tokens,
                             const at::Tensor& places, const DropoutKeys& keys);
// Adds up in fp32 in the order of the tokens, and rounds once. Of tables that are not trained nothing is handed over.
Status embedding_backward(const Model& model, const at::Tensor& tokens, const at::Tensor& places, at::Tensor gradient,
                          const DropoutKeys& keys, const EndChunks& chunks, const TakeRows& take);

}  // namespace penstock::trainer
