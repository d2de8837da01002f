// Numbers that find the differences between two implementations: every exponent, ties, tiny, huge, zeros of both signs,
// infinities and NaN among ordinary ones.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "tiering/arithmetic/convert.h"
#include "tiering/state_layout.h"

namespace penstock::gpu {

// Gradients may be anything; states hold nothing but zero below 2^-100 (tiering/arithmetic/optimizer.h).
enum class Tiny { kept, flushed };

// `size` sets the magnitude of the ordinary ones, about nine in ten.
inline void fill_adversarial(std::span<float> values, uint64_t seed, float size, Tiny tiny) {
  std::mt19937_64 random(seed);
  static constexpr uint32_t kSpecial[] = {
      0x0000'0000, 0x8000'0000, 0x3f80'0000, 0xbf80'0000, 0x7f7f'ffff, 0xff7f'ffff, 0x7f80'0000, 0xff80'0000,
      0x7fc0'0000, 0xffc1'2345, 0x7f80'0001, 0x0080'0000, 0x0000'0001, 0x807f'ffff, 0x0d80'0000, 0x0d7f'ffff,
      0x3f80'8000, 0x3f81'8000, 0x3f7f'8000, 0x0380'0000, 0x037f'ffff, 0x477f'efff, 0x477f'f000, 0x3300'0000,
      0x3300'0001, 0x387f'ffff, 0x3880'0000, 0x7f7f'8000, 0x5f80'0000, 0x2f80'0000, 0x7fff'ffff, 0xffff'ffff};
  for (float& value : values) {
    uint64_t draw = random(), more = random();
    // Four uniform numbers added: near enough to a normal one of deviation 1.
    int32_t sum = static_cast<int16_t>(more) + static_cast<int16_t>(more >> 16) + static_cast<int16_t>(more >> 32) +
                  static_cast<int16_t>(more >> 48);
    value = size * static_cast<float>(sum) / 37837.0f;
    if (draw % 16 == 0) value = std::bit_cast<float>(static_cast<uint32_t>(draw >> 32));  // any bits at all
    if (draw % 64 == 1) value = std::bit_cast<float>(kSpecial[(draw >> 32) % std::size(kSpecial)]);
    if (draw % 16 == 2) value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff'8000u);  // ties of bf16
    if (tiny == Tiny::flushed && std::abs(value) < 0x1p-100f) value = std::copysign(0.0f, value);
  }
}

// Made in pieces, by as many threads as there are: the values depend on the seed alone.
inline std::vector<float> adversarial_floats(uint64_t count, uint64_t seed, float size, Tiny tiny) {
  constexpr uint64_t kPiece = 1 << 18;
  std::vector<float> values(count);
  std::atomic<uint64_t> next = 0;
  auto work = [&] {
    for (uint64_t begin; (begin = next.fetch_add(kPiece)) < count;) {
      uint64_t length = std::min(kPiece, count - begin);
      fill_adversarial({&values[begin], length}, seed ^ begin << 20, size, tiny);
    }
  };
  uint64_t workers = std::min<uint64_t>(std::thread::hardware_concurrency(), count / kPiece);
  std::vector<std::jthread> threads;
  for (uint64_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  threads.clear();  // each ends before the values are handed out
  return values;
}

// The bytes of `values` in `dtype`; to bf16 by truncation, so that a NaN keeps its payload.
inline std::vector<std::byte> bytes_in(Dtype dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  for (uint64_t i = 0; i < values.size(); ++i) {
    uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    uint16_t half = dtype == Dtype::bf16 ? static_cast<uint16_t>(bits >> 16) : arithmetic::fp16_of_float(values[i]);
    if (dtype == Dtype::fp32) {
      __builtin_memcpy(&bytes[i * 4], &bits, 4);
    } else {
      __builtin_memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

}  // namespace penstock::gpu
