// The kernels that every Device has, as plain descriptions: which bytes, which formats, which numbers. Addresses are
// the device's own. Any length and any alignment to the element is taken; multiples of 16 B are fastest.
//
// Fused multiply-adds are explicit, division and root correctly rounded, sums in a stated order: every device gives the
// bits of cpu_optim. Narrowing rounds to nearest, ties to even; a NaN is written as 0x7fc00000 (0x7fc0, 0x7e00).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "tiering/state_layout.h"
#include "tiering/step_numbers.h"

namespace penstock::kernel {

// Every byte of the run becomes `value`: zeros, or the poison of released memory.
struct Fill {
  std::byte* target = nullptr;
  uint64_t bytes = 0;
  uint8_t value = 0;
};

// target[i] = source[i] among fp32, bf16 and fp16.
struct Cast {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  Dtype source_dtype = Dtype::fp32;
  Dtype target_dtype = Dtype::fp32;
  uint64_t elements = 0;
};

// target[i] += source[i], in fp32; a denormal counts as zero, in and out.
struct Accumulate {
  const std::byte* source = nullptr;
  Dtype source_dtype = Dtype::fp32;
  float* target = nullptr;
  uint64_t elements = 0;
};

// values[i] = values[i] * scale, through fp32, rounded once.
struct Scale {
  std::byte* values = nullptr;
  Dtype dtype = Dtype::fp32;
  float scale = 1;
  uint64_t elements = 0;
};

// sums[b] = the sum of squares of block b (kBlockElements elements, the last may be shorter), in double: 32 sums, where
// sum j takes elements j, j+32, j+64, ... in order; then 16 sums of j and j+16, then 8, 4, 2 and 1. A number below
// 2^-126 counts as zero. It is the finite check too: a block's sum is finite if and only if all its elements are.
struct SquareSums {
  const std::byte* values = nullptr;
  Dtype dtype = Dtype::fp32;
  uint64_t elements = 0;
  double* sums = nullptr;
};

// target[i] = source[i] rounded to bf16 stochastically, drawn from (seed, step, first_element + i).
struct RoundStochastic {
  const float* source = nullptr;
  uint16_t* target = nullptr;
  uint64_t elements = 0;
  uint64_t first_element = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
};

// One optimizer step over a tile, in place: what cpu_optim's TileUpdater does, with the same planes in the same order.
// A tile of several groups of hyper-parameters is launched run by run, each with its numbers and its part of the
// planes. REQUIRES: with int8 moments first_element is a multiple of kMomentBlockElements, and so is the end of all but
// the unit's last run.
struct UpdateTile {
  static constexpr size_t kPlanesMax = 5;

  StateForm form;
  StepNumbers numbers;
  std::byte* weight = nullptr;
  const std::byte* gradient = nullptr;
  std::array<std::byte*, kPlanesMax> planes{};  // in the order of resting_planes(form)
  uint64_t elements = 0;
  uint64_t first_element = 0;
};

// Frozen weights in codes, as arithmetic/block_codes.h says, in blocks of `block_elements`: a power of two, 64 to 4096.
using penstock::BlockCode;

struct Quantise {
  BlockCode code = BlockCode::nf4;
  const std::byte* source = nullptr;
  Dtype source_dtype = Dtype::bf16;
  std::byte* codes = nullptr;
  float* absmax = nullptr;
  uint64_t elements = 0;
  uint32_t block_elements = 64;
};

struct Dequantise {
  BlockCode code = BlockCode::nf4;
  const std::byte* codes = nullptr;
  const float* absmax = nullptr;
  std::byte* target = nullptr;
  Dtype target_dtype = Dtype::bf16;
  uint64_t elements = 0;
  uint32_t block_elements = 64;
};

}  // namespace penstock::kernel

namespace penstock {

using Kernel = std::variant<kernel::Fill, kernel::Cast, kernel::Accumulate, kernel::Scale, kernel::SquareSums,
                            kernel::RoundStochastic, kernel::UpdateTile, kernel::Quantise, kernel::Dequantise>;

}  // namespace penstock
