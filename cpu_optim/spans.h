// One optimizer step over spans of the caller's, for embedding: everything else in this folder is for tiles.
//
//   Status status = cpu_optim::step(OptimizerKind::adamw, hyper, number,
//                                   {.weight = p, .gradient = g, .momentum = m, .variance = v});
#pragma once

#include <span>

#include "tiering/hyper.h"
#include "tiering/status.h"

namespace penstock::cpu_optim {

// fp32 all through, moments too, at any address. Spans that the optimizer has no use for stay empty; the others are
// equally long, and no two share a byte.
struct Spans {
  std::span<float> weight;
  std::span<const float> gradient;
  std::span<float> momentum = {};
  std::span<float> variance = {};
  float gradient_scale = 1;  // every gradient is multiplied by it; below 2^-126 it counts as zero
};

// The step that `number` counts from 1, on the calling thread, with the fastest kernels of this processor. Refuses,
// and has then written nothing: hyper-parameters that validate() refuses, step 0, spans that are not as said above, a
// scale that is not finite. Gradients and states may be any numbers at all.
Status step(OptimizerKind kind, const Hyper& hyper, uint64_t number, const Spans& spans);

}  // namespace penstock::cpu_optim
