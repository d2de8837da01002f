// Values on their way between ranks, in codes: runs of records (tiering/code_records.h), each of one block of
// kCodeBlockElements values, bit for bit what tiering/arithmetic/block_codes.h defines, on every Isa and in every
// floating-point mode of the caller.
//
// A block with a value that is not finite is NaN afterwards, all of it: what overflows is found wherever it comes to.
// A block of zeros stays one; -0 becomes 0. Of magnitudes above 2^121 (in int4 2^125) the largest become infinite.
//
// They run on the calling thread; blocks are independent, so callers share out runs of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/gradient.h"
#include "cpu_optim/isa.h"
#include "tiering/code_records.h"

namespace penstock::cpu_optim {

class RecordCodec {
 public:
  // REQUIRES: `isa` is among available_isas().
  explicit RecordCodec(Isa isa = best_isa());

  // Runs begin with a block. The last block may be shorter; its record is a whole one. Dtypes are fp32, bf16 and fp16.
  void encode(BlockCode code, Dtype dtype, const std::byte* values, uint64_t elements, std::byte* records) const;
  // Rounded once, to nearest, ties to even; a NaN becomes the one that GradientKernels gives.
  void decode(BlockCode code, const std::byte* records, uint64_t elements, Dtype dtype, std::byte* values) const;

 private:
  const struct Kernels* kernels_;
  const GradientKernels dtypes_;
};

}  // namespace penstock::cpu_optim
