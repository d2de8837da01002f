// Frozen weights in codes, on the CPU: what comes back. That a device gives the same bits is
// tests/gpu/quantise_test.cpp's.
#include "cpu_optim/block_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "tiering/arithmetic/block_codes.h"
#include "tiering/buffer.h"

namespace penstock::cpu_optim {
namespace {

// No two neighbouring codes of NF4 are further apart than 0.304 of the largest; those of int8 are 1 / 127.
double half_a_step(BlockCode code) { return code == BlockCode::int8 ? 0.5 / 127 : 0.152; }

TEST(BlockCodes, StandForEachValueWithinHalfAStepOfItsOwnBlockHoweverTheyAreRead) {
  constexpr uint64_t kElements = 5 * kCodeBlockElements + 17;
  const uint64_t seed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    std::vector<float> values(kElements), scales(kElements / kCodeBlockElements + 1);
    // Each block is of another size.
    for (uint64_t i = 0; i < kElements; ++i)
      values[i] = normal(random) * std::pow(8.0f, static_cast<float>(i / kCodeBlockElements));
    std::vector<std::byte> codes(kElements);
    quantise(code, values, codes.data(), scales.data());
    const CodedRun run{code, codes.data(), scales.data()};
    std::vector<float> whole(kElements);
    dequantise(run, 0, kElements, Dtype::fp32, reinterpret_cast<std::byte*>(whole.data()));
    for (uint64_t i = 0; i < kElements; ++i) {
      const uint64_t block = i / kCodeBlockElements * kCodeBlockElements;
      float largest = 0;
      for (uint64_t k = block; k < std::min(kElements, block + kCodeBlockElements); ++k)
        largest = std::max(largest, std::fabs(values[k]));
      ASSERT_LE(std::fabs(whole[i] - values[i]), half_a_step(code) * largest * (1 + 1e-5)) << name_of(code) << ' ' << i;
    }
    for (int round = 0; round < 200; ++round) {
      const uint64_t first = random() % kElements, count = 1 + random() % (kElements - first);
      std::vector<float> part(count);
      dequantise(run, first, count, Dtype::fp32, reinterpret_cast<std::byte*>(part.data()));
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first))) << first;
    }
  }
}

// What the definition says of one element.
uint32_t bits_by_definition(BlockCode code, uint32_t stored, float scale, Dtype dtype) {
  const float value =
      code == BlockCode::int8 ? arithmetic::int8_value(stored, scale) : arithmetic::nf4_value(stored) * scale;
  if (dtype == Dtype::bf16) return arithmetic::bf16_of_float(value);
  if (dtype == Dtype::fp16) return arithmetic::fp16_of_float(value);
  return std::isnan(value) ? 0x7fc0'0000u : arithmetic::bits_of(value);
}

TEST(BlockCodes, AreTheSameBitsOnEveryIsaWhateverTheScale) {
  // A long run is written past the caches where its place is aligned.
  constexpr uint64_t kElements = (1 << 18) + 5 * kCodeBlockElements + 21;
  const float scales_of_blocks[] = {
      1.0f, 0x1.8p-119f, 0x1p-126f, 3e38f, 0.0f, 65504.0f, 0.0123f, std::numeric_limits<float>::quiet_NaN(), 1e-40f};
  const uint64_t seed = 43;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::byte> codes(kElements + 1);
  for (std::byte& byte : codes) byte = static_cast<std::byte>(random());
  std::vector<float> scales(ceil_div(kElements, kCodeBlockElements));
  for (float& scale : scales) scale = scales_of_blocks[random() % std::size(scales_of_blocks)];
  for (const BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      const uint64_t size = bytes_of(dtype);
      std::vector<std::byte> expected(kElements * size);
      for (uint64_t i = 0; i < kElements; ++i) {
        const auto byte = static_cast<uint32_t>(codes[code == BlockCode::int8 ? i : i / 2]);
        const uint32_t stored = code == BlockCode::int8 ? byte : i % 2 == 0 ? byte >> 4 : byte & 15;
        const uint32_t bits = bits_by_definition(code, stored, scales[i / kCodeBlockElements], dtype);
        std::memcpy(expected.data() + i * size, &bits, size);
      }
      for (const Isa isa : available_isas()) {
        for (const uint64_t first : {uint64_t{0}, uint64_t{64}, uint64_t{13}}) {
          const uint64_t beyond = first == 64 ? 3 : 0;  // of an aligned place
          Buffer target = Buffer::on_heap((kElements + 64) * size);
          std::byte* begin = target.bytes().data() + beyond * size;
          dequantise({code, codes.data(), scales.data()}, first, kElements - first, dtype, begin, isa);
          ASSERT_EQ(std::memcmp(begin, expected.data() + first * size, (kElements - first) * size), 0)
              << name_of(code) << " to " << name_of(dtype) << " by " << name_of(isa) << " from " << first;
        }
      }
    }
  }
}

TEST(BlockCodes, TakeTheLowerOfTwoEquallyNearOnesInNf4) {
  std::vector<float> values(kCodeBlockElements, 0.0f);
  values[0] = 1;  // the scale
  for (uint32_t i = 0; i < arithmetic::kNf4Midpoints; ++i) {
    values[2 + 2 * i] = arithmetic::nf4_midpoint(i);
    values[3 + 2 * i] = std::nextafter(arithmetic::nf4_midpoint(i), 2.0f);
  }
  std::vector<std::byte> codes(kCodeBlockElements / 2);
  float scale = 0;
  quantise(BlockCode::nf4, values, codes.data(), &scale);
  ASSERT_EQ(scale, 1.0f);
  for (uint32_t i = 0; i < arithmetic::kNf4Midpoints; ++i) {
    const auto pair = static_cast<uint32_t>(codes[1 + i]);
    EXPECT_EQ(pair >> 4, i) << "on midpoint " << i;
    EXPECT_EQ(pair & 15, i + 1) << "above midpoint " << i;
  }
}

}  // namespace
}  // namespace penstock::cpu_optim
