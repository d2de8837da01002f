// Random numbers that are functions of what they are for: who draws them, when and in which order does not matter.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tiering/arithmetic/stochastic.h"

namespace penstock::trainer {

// A stream of its own for each combination of what it is named by.
constexpr uint64_t stream_key(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) {
  // "splitmix64": a bijection, so that two streams with equal beginnings differ.
  auto mixed = [](uint64_t x) {
    x += 0x9e37'79b9'7f4a'7c15u;
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11ebu;
    return x ^ (x >> 31);
  };
  uint64_t key = mixed(seed);
  for (uint64_t word : {a, b, c, d}) key = mixed(key ^ word);
  return key;
}

// 32 bits for element `index` of a stream.
inline uint32_t stream_bits(uint64_t key, uint64_t index) {
  uint32_t x = arithmetic::mix(static_cast<uint32_t>(index) ^ static_cast<uint32_t>(key));
  return arithmetic::mix(x ^ static_cast<uint32_t>(index >> 32) ^ static_cast<uint32_t>(key >> 32));
}

}  // namespace penstock::trainer
