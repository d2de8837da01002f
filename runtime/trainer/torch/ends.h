// The two ends of a model: tokens in, loss out. Neither records a graph of its matrix, which is the model's largest,
// and both hand their gradients over in pieces.
#pragma once

#include <functional>
#include <span>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/torch/block.h"

namespace penstock::trainer {

// How much of the two largest matrices is in memory at once. Configuration: another choice rounds in other places.
struct EndChunks {
  int64_t tokens = 0;  // whose logits are computed at once; 0: all
  int64_t rows = 0;    // of the vocabulary, whose gradient is computed at once; 0: all. Some: logits are computed twice
};

// Takes a gradient: of the parameter with that role, rows [first_row, ...), contiguous.
using TakeRows = std::function<Status(WeightRole role, int64_t first_row, const at::Tensor& rows)>;

at::Tensor token_tensor(const MicroBatch& batch);  // [sequences, length], in host memory

// `tokens` in host memory, what comes of them on the device of the weights; `places` as in Positions.
at::Tensor embedding_forward(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& tokens,
                             const at::Tensor& places, const DropoutKeys& keys);
// Adds up in fp32 in the order of the tokens, and rounds once. Of tables that are not trained nothing is handed over.
Status embedding_backward(const Model& model, const at::Tensor& tokens, const at::Tensor& places, at::Tensor gradient,
                          const DropoutKeys& keys, const EndChunks& chunks, const TakeRows& take);

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
