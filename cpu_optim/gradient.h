// GradientKernels prepares gradients for the update: it widens them, adds them up in fp32, rounds the sum once, and
// computes its norm.
//
// All of it runs at the speed of memory and gives the same bits on every Isa and in every floating-point mode of the
// caller. Dtypes are fp32, bf16 and fp16. Rounding is to nearest, ties to even. A NaN becomes 0x7fc00000 (0x7fc0 in
// bf16, 0x7e00 in fp16). Numbers below 2^-126, widened to fp32, count as zero in sums and squares; cast() keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/isa.h"
#include "tiering/state_layout.h"
#include "tiering/tier.h"

namespace penstock::cpu_optim {

class GradientKernels {
 public:
  // REQUIRES: `isa` is among available_isas().
  explicit GradientKernels(Isa isa = best_isa());

  // target[i] += source[i], widened. Sums below 2^-126 become zero.
  void accumulate(Dtype source_dtype, const std::byte* source, float* target, uint64_t elements) const;

  // target[i] = source[i], by way of fp32: exact when it widens, rounded once when it narrows.
  void cast(Dtype source_dtype, const std::byte* source, Dtype target_dtype, std::byte* target,
            uint64_t elements) const;

  // target[i] = sources[0][i] + sources[1][i] + ..., as by accumulate() in this order, and by cast(). Each value is
  // read once, and each sum is written once. REQUIRES: there is a source.
  void sum(Dtype source_dtype, std::span<const std::byte* const> sources, Dtype target_dtype, std::byte* target,
           uint64_t elements) const;

  // The sum of squares of each block of kBlockElements elements (the last may be shorter), in double.
  // Definition: 32 sums, where sum j takes elements j, j+32, j+64, ... of the block in order; then 16 sums of j and
  // j+16, 8 of j and j+8, 4, 2 and 1. A block's sum is finite if and only if all its elements are.
  // REQUIRES: sums.size() >= ceil_div(elements, kBlockElements).
  void square_sums(Dtype dtype, const std::byte* values, uint64_t elements, std::span<double> sums) const;

 private:
  const struct Kernels* kernels_;
};

// Adds the sums of blocks in block order.
double total(std::span<const double> sums);

}  // namespace penstock::cpu_optim
