// The table of kernels that each Isa fills in. For this folder alone. Kernels work on whole groups of elements. Their
// callers copy a ragged rest into zero-filled memory, so that every element of a tile is computed in the same way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu_optim/isa.h"
#include "cpu_optim/tile_update.h"
#include "tiering/arithmetic/checksum.h"
#include "tiering/hyper.h"

namespace penstock::cpu_optim {

// The loop of every kernel takes so many elements at a time, or a divisor of that.
constexpr uint64_t kGroupElements = 64;

constexpr size_t kMasterForms = 3;
constexpr size_t kMomentForms = 3;
constexpr size_t kGradientDtypes = 3;  // fp32, bf16, fp16: the first three Dtypes
constexpr size_t kRecordCodes = 2;     // int8, int4: the first two BlockCodes
constexpr size_t kBlockCodes = 3;      // and nf4
constexpr size_t kSquareSumLanes = 32;
constexpr size_t kPlanesMax = 1 + kRestingPlanesMax;

// A part of a tile. Pointers are to its first element; `elements` is a multiple of kGroupElements, and of
// kMomentBlockElements with int8 moments.
struct TilePart {
  std::array<PlaneView, kPlanesMax> planes;  // the weight, then the resting planes
  const std::byte* gradient;
  uint64_t elements;
  Dtype weight_dtype;
  Dtype gradient_dtype;
  float gradient_scale;
  uint32_t random_key;         // of the step and of the upper half of the elements' indices
  uint32_t random_index;       // lower half of the first element's index; does not wrap within the run
  uint64_t prefetch_elements;  // how far ahead of the loop to prefetch
  bool stream_weight;          // write the 16-bit weight past the caches; its target is 64-byte aligned
};

using UpdateKernel = void (*)(const TilePart&, const Coefficients&);
using SquareSumKernel = void (*)(const std::byte* values, uint64_t elements, double* lanes);
using AccumulateKernel = void (*)(const std::byte* source, float* target, uint64_t elements);
// `streams`: writes past the caches; the target must be aligned to 64 bytes.
using CastKernel = void (*)(const std::byte* source, std::byte* target, uint64_t elements, bool streams);
// As CastKernel, of the sum of what stands at `sources`, one or more, in their order.
using SumKernel = void (*)(const std::byte* const* sources, size_t count, std::byte* target, uint64_t elements,
                           bool streams);
// Whole blocks of values, and their records.
using EncodeKernel = void (*)(const float* values, uint64_t blocks, std::byte* records);
using DecodeKernel = void (*)(const std::byte* records, uint64_t blocks, float* values);
// Whole blocks of codes and their scales, as frozen weights rest. `streams`: as CastKernel's.
using DequantiseKernel = void (*)(const std::byte* codes, const float* scales, uint64_t blocks, std::byte* target,
                                  bool streams);
using ChecksumKernel = void (*)(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count, uint64_t first_stripe);

struct Kernels {
  Isa isa;
  uint32_t instructions;  // of instructions.h: what the source file was compiled for
  UpdateKernel update[kOptimizerKinds.size()][kMasterForms][kMomentForms];
  SquareSumKernel square_sums[kGradientDtypes];
  AccumulateKernel accumulate[kGradientDtypes];
  CastKernel cast[kGradientDtypes][kGradientDtypes];
  SumKernel sum[kGradientDtypes][kGradientDtypes];
  EncodeKernel encode[kRecordCodes];
  DecodeKernel decode[kRecordCodes];
  DequantiseKernel dequantise[kBlockCodes][kGradientDtypes];  // not of int4
  ChecksumKernel checksum;
};

// Adds the sums in the tree order that GradientKernels::square_sums() defines.
double sum_of_lanes(std::array<double, kSquareSumLanes> lanes);

// REQUIRES: `isa` is among available_isas().
const Kernels& kernels_of(Isa isa);

// Defined only if the build's target architecture has the Isa.
extern const Kernels kScalarKernels;
extern const Kernels kSse2Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kNeonKernels;

}  // namespace penstock::cpu_optim
