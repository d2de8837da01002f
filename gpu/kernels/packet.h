// Packets of four values, widened to fp32. They are loaded and stored in one access if they are whole and aligned, and
// otherwise one value at a time.
#pragma once

#include "gpu/kernels/grid.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::gpu {

template <typename T>
struct alignas(sizeof(T) * kPacket) Packet {
  T values[kPacket];
};

template <typename T>
PENSTOCK_HOST_DEVICE bool is_aligned(const T* place) {
  return reinterpret_cast<uintptr_t>(place) % sizeof(Packet<T>) == 0;
}

// Values past `length` are zero.
template <typename T>
PENSTOCK_HOST_DEVICE Packet<T> load(const T* place, uint32_t length) {
  if (length == kPacket && is_aligned(place)) return *reinterpret_cast<const Packet<T>*>(place);
  Packet<T> packet;
  for (uint32_t i = 0; i < kPacket; ++i) packet.values[i] = i < length ? place[i] : T{};
  return packet;
}

template <typename T>
PENSTOCK_HOST_DEVICE void store(T* place, uint32_t length, const Packet<T>& packet) {
  if (length == kPacket && is_aligned(place)) {
    *reinterpret_cast<Packet<T>*>(place) = packet;
    return;
  }
  for (uint32_t i = 0; i < kPacket; ++i) {
    if (i < length) place[i] = packet.values[i];
  }
}

// Raw, up to 16 B: the format is examined after all loads have been issued.
struct RawPacket {
  Packet<uint32_t> wide;
};

PENSTOCK_HOST_DEVICE RawPacket load_raw(const std::byte* values, Dtype dtype, uint64_t index, uint32_t length) {
  RawPacket raw;
  if (dtype == Dtype::fp32) {
    raw.wide = load(reinterpret_cast<const uint32_t*>(values) + index, length);
  } else {
    Packet<uint16_t> halves = load(reinterpret_cast<const uint16_t*>(values) + index, length);
    for (uint32_t i = 0; i < kPacket; ++i) raw.wide.values[i] = halves.values[i];
  }
  return raw;
}

PENSTOCK_HOST_DEVICE float widen(uint32_t raw, Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return arithmetic::float_of_bf16(static_cast<uint16_t>(raw));
    case Dtype::fp16:
      return arithmetic::float_of_fp16(static_cast<uint16_t>(raw));
    default:
      return arithmetic::float_of(raw);
  }
}

PENSTOCK_HOST_DEVICE Packet<float> widen(const RawPacket& raw, Dtype dtype) {
  Packet<float> packet;
  for (uint32_t i = 0; i < kPacket; ++i) packet.values[i] = widen(raw.wide.values[i], dtype);
  return packet;
}

PENSTOCK_HOST_DEVICE Packet<float> load_wide(const std::byte* values, Dtype dtype, uint64_t index, uint32_t length) {
  return widen(load_raw(values, dtype, index, length), dtype);
}

// Rounds to `dtype`. A NaN is written as the canonical NaN, also in fp32.
PENSTOCK_HOST_DEVICE void store_narrow(std::byte* values, Dtype dtype, uint64_t index, uint32_t length,
                                       const Packet<float>& packet) {
  if (dtype == Dtype::fp32) {
    Packet<uint32_t> words;
    for (uint32_t i = 0; i < kPacket; ++i) {
      uint32_t bits = arithmetic::bits_of(packet.values[i]);
      words.values[i] = arithmetic::is_nan(bits) ? 0x7fc0'0000u : bits;
    }
    store(reinterpret_cast<uint32_t*>(values) + index, length, words);
    return;
  }
  Packet<uint16_t> halves;
  for (uint32_t i = 0; i < kPacket; ++i) {
    float value = packet.values[i];
    halves.values[i] = dtype == Dtype::bf16 ? arithmetic::bf16_of_float(value) : arithmetic::fp16_of_float(value);
  }
  store(reinterpret_cast<uint16_t*>(values) + index, length, halves);
}

}  // namespace penstock::gpu
