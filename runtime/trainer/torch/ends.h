// What the two ends of a model have in common: embedding.h, tokens in, and head.h, loss out. Neither records a graph of
// its matrix, which is the model's largest, and both hand their gradients over in pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "runtime/trainer/model.h"
#include "tiering/status.h"

namespace penstock::trainer {

// How much of the two largest matrices is in memory at once. Configuration: another choice rounds in other places.
struct EndChunks {
  int64_t tokens = 0;  // whose logits are computed at once; 0: all
  int64_t rows = 0;    // of the vocabulary, whose gradient is computed at once; 0: all. Some: logits are computed twice
};

// Takes a gradient: of the parameter with that role, rows [first_row, ...), contiguous.
using TakeRows = std::function<Status(WeightRole role, int64_t first_row, const at::Tensor& rows)>;

// Runs of at most `chunk` of `all`; one run if chunk is 0.
template <typename Function>
void for_runs(int64_t all, int64_t chunk, Function function) {
  const int64_t step = chunk > 0 ? chunk : std::max<int64_t>(all, 1);
  for (int64_t first = 0; first < all; first += step) function(first, std::min(step, all - first));
}

inline bool is_trained(const Model& model, WeightRole role) {
  for (const ModelUnit& unit : model.units)
    for (const ModelParameter& parameter : unit.parameters)
      if (parameter.role == role) return parameter.trainable;
  return false;
}

// [..., values] as [rows, values].
inline at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace penstock::trainer
