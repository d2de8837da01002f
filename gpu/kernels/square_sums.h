// Sums of squares in the fixed block order. One warp sums one block of kBlockElements. Its thread j computes the
// definition's sum j, so 32 sequential chains of 2048 additions run in parallel, and other warps hide their latency.
#pragma once

#include "gpu/kernels/packet.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::gpu {

constexpr uint32_t kSums = 32;  // of the definition in device_kernels.h, and of a warp

struct SquareSumsKernel : kernel::SquareSums {
  static constexpr uint32_t kPhases = 2;
  static constexpr uint32_t kBlocksAtOnce = kThreads / kSums;
  struct Shared {
    double sums[kBlocksAtOnce][kSums];
  };
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t norm_blocks() const { return (elements + kBlockElements - 1) / kBlockElements; }
  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return (norm_blocks() + kBlocksAtOnce - 1) / kBlocksAtOnce; }

  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local&) const {
    uint32_t warp = thread / kSums;
    uint32_t lane = thread % kSums;
    uint64_t norm_block = block * kBlocksAtOnce + warp;
    if (norm_block >= norm_blocks()) return;
    if (phase == 0) {
      shared.sums[warp][lane] = sum_of_lane(norm_block, lane);
    } else if (lane == 0) {
      double(&sum)[kSums] = shared.sums[warp];
      for (uint32_t half = kSums / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; ++j) sum[j] += sum[j + half];
      }
      write(norm_block, sum[0]);
    }
  }

 private:
  static constexpr uint32_t kAhead = 16;  // loads in flight before the first is added

  PENSTOCK_HOST_DEVICE double sum_of_lane(uint64_t norm_block, uint32_t lane) const {
    uint64_t index = norm_block * kBlockElements + lane;
    uint64_t end = norm_block * kBlockElements + kBlockElements;
    if (end > elements) end = elements;
    double sum = 0;
    while (index + (kAhead - 1) * kSums < end) {
      uint32_t raw[kAhead];
      PENSTOCK_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) raw[k] = load_one(index + k * kSums);
      PENSTOCK_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) sum = added(sum, raw[k]);
      index += kAhead * kSums;
    }
    for (; index < end; index += kSums) sum = added(sum, load_one(index));
    return sum;
  }

  PENSTOCK_HOST_DEVICE uint32_t load_one(uint64_t index) const {
    return dtype == Dtype::fp32 ? reinterpret_cast<const uint32_t*>(values)[index]
                                : uint32_t{reinterpret_cast<const uint16_t*>(values)[index]};
  }

  // Processors differ in which NaN a sum yields.
  PENSTOCK_HOST_DEVICE void write(uint64_t norm_block, double sum) const {
    if (sum == sum) {
      sums[norm_block] = sum;
    } else {
      reinterpret_cast<uint64_t*>(sums)[norm_block] = 0x7ff8'0000'0000'0000u;
    }
  }

  // The square of an fp32 number is exact in double, so fused or not is the same; where doubles are slow, fused is half
  // of the work.
  PENSTOCK_HOST_DEVICE double added(double sum, uint32_t raw) const {
    double value = arithmetic::PlainNumbers::normal(widen(raw, dtype));
#if defined(__CUDA_ARCH__)
    return __fma_rn(value, value, sum);
#else
    return sum + value * value;
#endif
  }
};

}  // namespace penstock::gpu
