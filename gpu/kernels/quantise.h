// Frozen weights to blocks of codes and back, as arithmetic/block_codes.h defines them.
#pragma once

#include "gpu/kernels/packet.h"
#include "tiering/arithmetic/block_codes.h"

namespace penstock::gpu {

using kernel::BlockCode;

// [-1, 1] in 32 equal cells, in none of which lie two of the midpoints: a value is compared with one of them at most.
constexpr uint32_t kNf4Cells = 32;

// REQUIRES: value >= -1, but for rounding.
PENSTOCK_HOST_DEVICE uint32_t nf4_cell_of(float value) {
  const auto cell = static_cast<uint32_t>(static_cast<int32_t>((value + 1.0f) * (kNf4Cells / 2)));
  return cell < kNf4Cells ? cell : kNf4Cells - 1;
}

struct Nf4Cell {
  float midpoint;  // that lies in it; where none does, more than any value
  uint32_t below;  // midpoints in the cells before it
};

PENSTOCK_HOST_DEVICE Nf4Cell nf4_cell(uint32_t number) {
  Nf4Cell cell{2.0f, 0};
  for (uint32_t i = 0; i < arithmetic::kNf4Midpoints; ++i) {
    const uint32_t of_midpoint = nf4_cell_of(arithmetic::nf4_midpoint(i));
    if (of_midpoint < number) ++cell.below;
    if (of_midpoint == number) cell.midpoint = arithmetic::nf4_midpoint(i);
  }
  return cell;
}

// How many midpoints lie below `value`, which is in [-1, 1]: one exactly on a midpoint takes the lower code.
PENSTOCK_HOST_DEVICE uint32_t nf4_code(float value, const Nf4Cell (&cells)[kNf4Cells]) {
  const Nf4Cell& cell = cells[nf4_cell_of(value)];
  return cell.below + (value > cell.midpoint ? 1u : 0u);
}

PENSTOCK_HOST_DEVICE uint32_t code_of(BlockCode code, float value, const Nf4Cell (&cells)[kNf4Cells]) {
  if (code == BlockCode::int8) return static_cast<uint32_t>(arithmetic::whole(value)) & 0xffu;
  if (code == BlockCode::int4) return static_cast<uint32_t>(arithmetic::whole(value) + 8);
  return nf4_code(value, cells);
}

// Two codes of four bits in a byte, the first in the high half. An odd end has zero's code beside it.
PENSTOCK_HOST_DEVICE void store_codes(BlockCode code, std::byte* codes, uint64_t index, uint32_t length,
                                      const uint32_t (&packet)[kPacket]) {
  if (code == BlockCode::int8) {
    Packet<uint8_t> bytes;
    for (uint32_t i = 0; i < kPacket; ++i) bytes.values[i] = static_cast<uint8_t>(packet[i]);
    store(reinterpret_cast<uint8_t*>(codes) + index, length, bytes);
    return;
  }
  const uint32_t first = packet[0] << 4 | packet[1], second = packet[2] << 4 | packet[3];
  std::byte* place = codes + index / 2;
  if (length == kPacket && reinterpret_cast<uintptr_t>(place) % 2 == 0) {
    *reinterpret_cast<uint16_t*>(place) = static_cast<uint16_t>(first | second << 8);
    return;
  }
  place[0] = static_cast<std::byte>(first);
  if (length > 2) place[1] = static_cast<std::byte>(second);
}

// A packet's codes as they lie, the first byte lowest; zeros past `length`.
PENSTOCK_HOST_DEVICE uint32_t load_codes(BlockCode code, const std::byte* codes, uint64_t index, uint32_t length) {
  if (code == BlockCode::int8) {
    const Packet<uint8_t> bytes = load(reinterpret_cast<const uint8_t*>(codes) + index, length);
    return bytes.values[0] | uint32_t{bytes.values[1]} << 8 | uint32_t{bytes.values[2]} << 16 |
           uint32_t{bytes.values[3]} << 24;
  }
  const std::byte* place = codes + index / 2;
  if (length == kPacket && reinterpret_cast<uintptr_t>(place) % 2 == 0)
    return *reinterpret_cast<const uint16_t*>(place);
  const uint32_t first = length > 0 ? static_cast<uint32_t>(place[0]) : 0u;
  return length > 2 ? first | static_cast<uint32_t>(place[1]) << 8 : first;
}

// Code `i` of those.
PENSTOCK_HOST_DEVICE uint32_t code_in(BlockCode code, uint32_t raw, uint32_t i) {
  if (code == BlockCode::int8) return raw >> 8 * i & 0xffu;
  return raw >> (8 * (i / 2) + (i % 2 == 0 ? 4 : 0)) & 0xfu;
}

// The largest magnitude of each quantising block is found in three steps: of each packet, of 16 elements, of 256; a
// block of 64 to 4096 elements then has at most 16 of the last two kinds. Magnitudes are compared as integers, in which
// NaN is the largest of all.
struct QuantiseKernel : kernel::Quantise {
  uint32_t block_shift;  // block_elements is 2 to this power

  static constexpr uint32_t kPhases = 4;
  static constexpr uint32_t kPackets = kThreads * kPacketsPerThread;
  struct Shared {
    uint32_t of_4[kPackets];
    uint32_t of_16[kThreads];
    uint32_t of_256[kThreads / 16];
    Nf4Cell nf4[kNf4Cells];
  };
  struct Local {
    Packet<float> values[kPacketsPerThread];
  };

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local& local) const {
    switch (phase) {
      case 0:
        if (code == BlockCode::nf4 && thread < kNf4Cells) shared.nf4[thread] = nf4_cell(thread);
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
    uint32_t begin = within >> block_shift << block_shift;
    uint32_t bits = block_elements <= 256 ? largest(&shared.of_16[begin / 16], block_elements / 16)
                                          : largest(&shared.of_256[begin / 256], block_elements / 256);
    float scale = arithmetic::block_scale(arithmetic::float_of(bits));
    if (within == begin) absmax[index >> block_shift] = scale;
    const bool has_codes = scale > 0;
    const float factor = has_codes ? arithmetic::code_factor(code, scale) : 0.0f;
    uint32_t coded[kPacket];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kPacket; ++i) {
      coded[i] =
          has_codes && i < length ? code_of(code, packet.values[i] * factor, shared.nf4) : arithmetic::zero_code(code);
    }
    store_codes(code, codes, index, length, coded);
  }
};

// Every thread of a warp may look at another of the 16 values: they lie in 16 banks, so that costs nothing.
struct DequantiseKernel : kernel::Dequantise {
  uint32_t block_shift;

  static constexpr uint32_t kPhases = 2;
  struct Shared {
    float nf4_values[16];
  };
  using Local = Nothing;

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return blocks_for(elements); }
  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local&) const {
    if (phase == 0) {
      if (thread < 16) shared.nf4_values[thread] = arithmetic::nf4_value(thread);
      return;
    }
    uint32_t raw[kPacketsPerThread];
    float scale[kPacketsPerThread];
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      uint32_t length = packet_length(index, elements);
      raw[k] = load_codes(code, codes, index, length);
      scale[k] = length > 0 ? absmax[index >> block_shift] : 0.0f;
    }
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < kPacketsPerThread; ++k) {
      uint64_t index = packet_index(block, thread, k);
      Packet<float> packet;
      for (uint32_t i = 0; i < kPacket; ++i) packet.values[i] = value_of(code_in(code, raw[k], i), scale[k], shared);
      store_narrow(target, target_dtype, index, packet_length(index, elements), packet);
    }
  }

 private:
  PENSTOCK_HOST_DEVICE float value_of(uint32_t bits, float scale, const Shared& shared) const {
    switch (code) {
      case BlockCode::int8:
        return arithmetic::int8_value(bits, scale);
      case BlockCode::int4:
        return arithmetic::int4_value(bits, scale);
      case BlockCode::nf4:
        return shared.nf4_values[bits] * scale;
    }
    return 0;
  }
};

}  // namespace penstock::gpu
