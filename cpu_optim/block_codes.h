// Frozen weights to codes in blocks of kCodeBlockElements and back: bit for bit what tiering/arithmetic/block_codes.h
// defines, in every floating-point mode of the caller.
//
// They run on the calling thread; blocks are independent, so callers share out runs of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/isa.h"
#include "tiering/state_layout.h"

namespace penstock::cpu_optim {

// `values` begin with a block; the last may be shorter. `codes` and `scales` get as many as coded_planes() says. int8
// or nf4.
void quantise(BlockCode code, std::span<const float> values, std::byte* codes, float* scales);

// Where a run's codes and scales lie, from its first block on.
struct CodedRun {
  BlockCode code = BlockCode::nf4;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
};

// target[i] = element first + i of the run, in `dtype`: fp32, bf16 or fp16, rounded to nearest, ties to even; a NaN
// becomes the one that GradientKernels gives. The same bits on every Isa. REQUIRES: `isa` is among available_isas().
void dequantise(const CodedRun& run, uint64_t first, uint64_t elements, Dtype dtype, std::byte* target,
                Isa isa = best_isa());

}  // namespace penstock::cpu_optim
