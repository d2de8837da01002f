// Kernels whose elements are independent: cast, accumulate, scale, stochastic rounding.
#pragma once

#include "gpu/kernels/packet.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::gpu {

struct CastKernel : kernel::Cast {
  static constexpr uint32_t kPhases = 1;
  using Shared = Nothing;
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t, uint64_t block, uint32_t thread, Shared&, Local&) const {
    RawPacket raw[kPacketsPerThread];
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      raw[k] = load_raw(source, source_dtype, index, packet_length(index, elements));
    }
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      store_narrow(target, target_dtype, index, packet_length(index, elements), widen(raw[k], source_dtype));
    }
  }
};

// A denormal counts as zero, as an input and as a result, as on the CPU. (A sum of two fp32 numbers that is so small is
// exact, so the hardware's rounding does not matter.)
struct AccumulateKernel : kernel::Accumulate {
  static constexpr uint32_t kPhases = 1;
  using Shared = Nothing;
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t, uint64_t block, uint32_t thread, Shared&, Local&) const {
    RawPacket raw[kPacketsPerThread];
    Packet<float> sum[kPacketsPerThread];
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      uint32_t length = packet_length(index, elements);
      raw[k] = load_raw(source, source_dtype, index, length);
      sum[k] = load(target + index, length);
    }
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      Packet<float> more = widen(raw[k], source_dtype);
      for (uint32_t i = 0; i < kPacket; ++i) {
        sum[k].values[i] = normal(normal(sum[k].values[i]) + normal(more.values[i]));
      }
      store_narrow(reinterpret_cast<std::byte*>(target), Dtype::fp32, index, packet_length(index, elements), sum[k]);
    }
  }

 private:
  static PENSTOCK_HOST_DEVICE float normal(float value) {
    uint32_t bits = arithmetic::bits_of(value);
    return (bits & arithmetic::kInfinityBits) == 0 ? arithmetic::float_of(bits & 0x8000'0000u) : value;
  }
};

struct ScaleKernel : kernel::Scale {
  static constexpr uint32_t kPhases = 1;
  using Shared = Nothing;
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t, uint64_t block, uint32_t thread, Shared&, Local&) const {
    RawPacket raw[kPacketsPerThread];
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      raw[k] = load_raw(values, dtype, index, packet_length(index, elements));
    }
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      Packet<float> packet = widen(raw[k], dtype);
      for (uint32_t i = 0; i < kPacket; ++i) packet.values[i] *= scale;
      store_narrow(values, dtype, index, packet_length(index, elements), packet);
    }
  }
};

struct RoundStochasticKernel : kernel::RoundStochastic {
  static constexpr uint32_t kPhases = 1;
  using Shared = Nothing;
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t, uint64_t block, uint32_t thread, Shared&, Local&) const {
    const uint32_t of_step = arithmetic::step_key(seed, step);
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      uint32_t length = packet_length(index, elements);
      Packet<float> packet = load(source + index, length);
      Packet<uint16_t> rounded;
      for (uint32_t i = 0; i < kPacket; ++i) {
        uint64_t element = first_element + index + i;
        uint32_t key = arithmetic::random_key(of_step, static_cast<uint32_t>(element >> 32));
        uint32_t random = arithmetic::random_bits(key, static_cast<uint32_t>(element));
        rounded.values[i] = arithmetic::bf16_stochastic(packet.values[i], static_cast<uint16_t>(random));
      }
      store(target + index, length, rounded);
    }
  }
};

}  // namespace penstock::gpu
