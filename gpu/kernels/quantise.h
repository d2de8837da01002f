// Frozen weights in blocks: int8, int4 and NF4. A block's scale is its largest magnitude; one that is below 2^-120
// counts as zero, and one that is not finite makes the whole block NaN.
#pragma once

#include "gpu/kernels/packet.h"

namespace penstock::gpu {

using kernel::BlockCode;

// The 16 quantiles of NF4 and the midpoints between them, as bitsandbytes fixed them (create_normal_map and
// dQuantizeNF4); tests/gpu/quantise_test.cpp holds what its own code makes of the same numbers.
PENSTOCK_HOST_DEVICE float nf4_value(uint32_t code) {
  constexpr float kValues[16] = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};
  return kValues[code];
}

// How many midpoints lie below `value`, which is in [-1, 1]: one exactly on a midpoint takes the lower code.
PENSTOCK_HOST_DEVICE uint32_t nf4_code(float value) {
  constexpr float kMidpoints[15] = {
      -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
      -0.13791173323988914f, -0.045525018125772475f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
      0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f};
  uint32_t code = 0;
  for (uint32_t i = 0; i < 15; ++i) code += value > kMidpoints[i] ? 1u : 0u;
  return code;
}

// The code whose value is zero (or nearest to it).
PENSTOCK_HOST_DEVICE uint32_t zero_code(BlockCode code) {
  return code == BlockCode::int8 ? 0u : code == BlockCode::int4 ? 8u : 7u;
}

// To the nearest whole number, ties to even, for |value| < 2^22: beside 1.5 * 2^23 there is no room for a fraction.
PENSTOCK_HOST_DEVICE int32_t whole(float value) { return static_cast<int32_t>((value + 0x1.8p23f) - 0x1.8p23f); }

PENSTOCK_HOST_DEVICE float block_scale(float largest) {
  uint32_t bits = arithmetic::bits_of(largest);
  if (!arithmetic::is_finite(bits)) return arithmetic::float_of(0x7fc0'0000u);
  return largest < 0x1p-120f ? 0.0f : largest;
}

PENSTOCK_HOST_DEVICE uint32_t code_of(BlockCode code, float value, float scale) {
  if (!(scale > 0)) return zero_code(code);
  switch (code) {
    case BlockCode::int8:
      return static_cast<uint32_t>(whole(value * (127.0f / scale))) & 0xffu;
    case BlockCode::int4:
      return static_cast<uint32_t>(whole(value * (7.0f / scale)) + 8);
    case BlockCode::nf4:
      return nf4_code(value * (1.0f / scale));
  }
  return 0;
}

// Two codes of four bits in a byte, the first in the high half.
PENSTOCK_HOST_DEVICE void store_codes(BlockCode code, std::byte* codes, uint64_t index, uint32_t length,
                                      const uint32_t (&packet)[kPacket]) {
  if (code == BlockCode::int8) {
    Packet<uint8_t> bytes;
    for (uint32_t i = 0; i < kPacket; ++i) bytes.values[i] = static_cast<uint8_t>(packet[i]);
    store(reinterpret_cast<uint8_t*>(codes) + index, length, bytes);
    return;
  }
  for (uint32_t i = 0; i < length; i += 2) {
    codes[(index + i) / 2] = static_cast<std::byte>(packet[i] << 4 | packet[i + 1]);
  }
}

PENSTOCK_HOST_DEVICE void load_codes(BlockCode code, const std::byte* codes, uint64_t index, uint32_t length,
                                     uint32_t (&packet)[kPacket]) {
  if (code == BlockCode::int8) {
    Packet<uint8_t> bytes = load(reinterpret_cast<const uint8_t*>(codes) + index, length);
    for (uint32_t i = 0; i < kPacket; ++i) packet[i] = bytes.values[i];
    return;
  }
  for (uint32_t i = 0; i < kPacket; i += 2) {
    uint32_t pair = i < length ? static_cast<uint32_t>(codes[(index + i) / 2]) : 0u;
    packet[i] = pair >> 4;
    packet[i + 1] = pair & 0xfu;
  }
}

// The largest magnitude of each quantising block is found in three steps: of each packet, of 16 elements, of 256; a
// block of 64 to 4096 elements then has at most 16 of the last two kinds. Magnitudes are compared as integers, in which
// NaN is the largest of all.
struct QuantiseKernel : kernel::Quantise {
  static constexpr uint32_t kPhases = 4;
  static constexpr uint32_t kPackets = kThreads * kPacketsPerThread;
  struct Shared {
    uint32_t of_4[kPackets];
    uint32_t of_16[kThreads];
    uint32_t of_256[kThreads / 16];
  };
  struct Local {
    Packet<float> values[kPacketsPerThread];
  };

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local& local) const {
    switch (phase) {
      case 0:
        PENSTOCK_UNROLL
        for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
          uint64_t index = packet_index(block, thread, k);
          local.values[k] = load_wide(source, source_dtype, index, packet_length(index, elements));
          shared.of_4[k * kThreads + thread] = largest_of(local.values[k]);
        }
        return;
      case 1:
        shared.of_16[thread] = largest(&shared.of_4[thread * 4], 4);
        return;
      case 2:
        if (thread % 16 == 0) shared.of_256[thread / 16] = largest(&shared.of_16[thread], 16);
        return;
      default:
        PENSTOCK_UNROLL
        for (uint32_t k = 0; k < kPacketsPerThread; ++k) write(block, thread, k, shared, local.values[k]);
    }
  }

 private:
  static PENSTOCK_HOST_DEVICE uint32_t largest_of(const Packet<float>& packet) {
    uint32_t bits[kPacket];
    for (uint32_t i = 0; i < kPacket; ++i) bits[i] = arithmetic::bits_of(packet.values[i]) & arithmetic::kMagnitudeBits;
    return largest(bits, kPacket);
  }

  static PENSTOCK_HOST_DEVICE uint32_t largest(const uint32_t* values, uint32_t count) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; ++i) most = values[i] > most ? values[i] : most;
    return most;
  }

  PENSTOCK_HOST_DEVICE void write(uint64_t block, uint32_t thread, uint32_t k, const Shared& shared,
                                  const Packet<float>& packet) const {
    uint64_t index = packet_index(block, thread, k);
    uint32_t length = packet_length(index, elements);
    if (length == 0) return;
    uint32_t within = (k * kThreads + thread) * kPacket;  // of this thread block's elements
    uint32_t begin = within / block_elements * block_elements;
    uint32_t bits = block_elements <= 256 ? largest(&shared.of_16[begin / 16], block_elements / 16)
                                          : largest(&shared.of_256[begin / 256], block_elements / 256);
    float scale = block_scale(arithmetic::float_of(bits));
    if (within == begin) absmax[index / block_elements] = scale;
    uint32_t coded[kPacket];
    for (uint32_t i = 0; i < kPacket; ++i) {
      coded[i] = i < length ? code_of(code, packet.values[i], scale) : zero_code(code);
    }
    store_codes(code, codes, index, length, coded);
  }
};

// Every thread of a warp may look at another of the 16 values: they lie in 16 banks, so that costs nothing.
struct DequantiseKernel : kernel::Dequantise {
  static constexpr uint32_t kPhases = 2;
  struct Shared {
    float nf4_values[16];
  };
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local&) const {
    if (phase == 0) {
      if (thread < 16) shared.nf4_values[thread] = nf4_value(thread);
      return;
    }
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      uint32_t length = packet_length(index, elements);
      if (length == 0) return;
      float scale = absmax[index / block_elements];
      uint32_t coded[kPacket];
      load_codes(code, codes, index, length, coded);
      Packet<float> packet;
      for (uint32_t i = 0; i < kPacket; ++i) packet.values[i] = value_of(coded[i], scale, shared);
      store_narrow(target, target_dtype, index, length, packet);
    }
  }

 private:
  PENSTOCK_HOST_DEVICE float value_of(uint32_t bits, float scale, const Shared& shared) const {
    switch (code) {
      case BlockCode::int8:
        return static_cast<float>(static_cast<int8_t>(bits)) * scale / 127.0f;
      case BlockCode::int4:
        return static_cast<float>(static_cast<int32_t>(bits) - 8) * scale / 7.0f;
      case BlockCode::nf4:
        return shared.nf4_values[bits] * scale;
    }
    return 0;
  }
};

}  // namespace penstock::gpu
