#include "tiering/arithmetic/checksum.h"

#include <bit>
#include <cstring>

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "stripes are read as little-endian words");

// A bijection of the pair for either argument fixed, so that a difference in one of them cannot be lost.
uint64_t fold(uint64_t value, uint64_t word) {
  value = (value ^ word) * kChecksumKeyStep;
  return value ^ (value >> 32);
}

}  // namespace

void add_checksum_stripe(ChecksumLanes& lanes, const std::byte* stripe_bytes, uint64_t stripe) {
  ChecksumLanes words;
  std::memcpy(words.data(), stripe_bytes, kChecksumStripeBytes);
  for (size_t j = 0; j < kChecksumLanes; ++j) {
    const uint64_t x = words[j] ^ (kChecksumKeys[j] + stripe * kChecksumKeyStep);
    lanes[j] += (x & 0xffffffff) * (x >> 32) + x;
  }
}

uint64_t finish_checksum(const ChecksumLanes& lanes, uint64_t length_bytes, uint64_t seed) {
  uint64_t value = fold(fold(kChecksumKeys[0], seed), length_bytes);
  for (uint64_t lane : lanes) value = fold(value, lane);
  return fold(value, 0);
}

uint64_t checksum(std::span<const std::byte> block, uint64_t seed) {
  ChecksumLanes lanes{};
  const uint64_t whole_stripes = block.size() / kChecksumStripeBytes;
  for (uint64_t s = 0; s < whole_stripes; ++s) add_checksum_stripe(lanes, &block[s * kChecksumStripeBytes], s);
  if (const uint64_t rest_bytes = block.size() % kChecksumStripeBytes; rest_bytes != 0) {
    std::array<std::byte, kChecksumStripeBytes> last{};
    std::memcpy(last.data(), &block[whole_stripes * kChecksumStripeBytes], rest_bytes);
    add_checksum_stripe(lanes, last.data(), whole_stripes);
  }
  return finish_checksum(lanes, block.size(), seed);
}

}  // namespace penstock
