// Records of codes: on every Isa, of every length, what their definition says, one value after another.
#include "cpu_optim/coded_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu_optim/flush_scope.h"
#include "tiering/arithmetic/block_codes.h"

namespace penstock::cpu_optim {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::byte> rounded(Dtype dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  GradientKernels().cast(Dtype::fp32, reinterpret_cast<const std::byte*>(values.data()), dtype, bytes.data(),
                         values.size());
  return bytes;
}
std::vector<float> widened(Dtype dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / bytes_of(dtype));
  GradientKernels().cast(dtype, bytes.data(), Dtype::fp32, reinterpret_cast<std::byte*>(values.data()), values.size());
  return values;
}

// What comes back of values, by the definition alone.
std::vector<float> expected(BlockCode code, const std::vector<float>& values) {
  std::vector<float> back;
  for (size_t first = 0; first < values.size(); first += kCodeBlockElements) {
    const size_t end = std::min<size_t>(values.size(), first + kCodeBlockElements);
    float largest = 0;
    for (size_t i = first; i < end; ++i) {
      largest = std::isfinite(values[i]) ? std::max(largest, std::fabs(values[i])) : kInfinity;
      if (std::isinf(largest)) break;
    }
    const float scale = arithmetic::block_scale(largest);
    for (size_t i = first; i < end; ++i) {
      const int32_t number = scale > 0 ? arithmetic::whole(values[i] * arithmetic::code_factor(code, scale)) : 0;
      back.push_back(code == BlockCode::int8 ? arithmetic::int8_value(static_cast<uint32_t>(number), scale)
                                             : arithmetic::int4_value(static_cast<uint32_t>(number + 8), scale));
    }
  }
  return back;
}

// Blocks of very different sizes; some of zeros, some with a value that is not finite.
std::vector<float> drawn(std::mt19937_64& random, uint64_t elements) {
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (uint64_t first = 0; first < elements; first += kCodeBlockElements) {
    const uint64_t end = std::min(elements, first + kCodeBlockElements), kind = random() % 8;
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 200) - 126);
    for (uint64_t i = first; i < end; ++i) values[i] = kind == 0 ? 0 : normal(random) * size;
    if (kind == 1) values[first + random() % (end - first)] = random() % 2 ? kNan : -kInfinity;
  }
  return values;
}

TEST(CodedRecords, AreTheirDefinitionOnEveryIsaAndOfEveryLength) {
  const uint64_t seed = 53;
  std::mt19937_64 random(seed);
  for (uint64_t elements : {1u, 2u, 63u, 64u, 65u, 127u, 129u, 4096u, 4097u, 9001u}) {
    const std::vector<float> values = drawn(random, elements);
    for (const BlockCode code : {BlockCode::int8, BlockCode::int4}) {
      for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        SCOPED_TRACE(testing::Message() << name_of(code) << ", " << name_of(dtype) << ", " << elements
                                        << " elements, seed " << seed);
        const std::vector<std::byte> given = rounded(dtype, values);
        const std::vector<std::byte> back = rounded(dtype, expected(code, widened(dtype, given)));
        std::vector<std::byte> first_records;
        for (const Isa isa : available_isas()) {
          const RecordCodec codec(isa);
          std::vector<std::byte> records(records_bytes(code, elements) + 1, std::byte{0xee}), got(given.size());
          codec.encode(code, dtype, given.data(), elements, records.data());
          codec.decode(code, records.data(), elements, dtype, got.data());
          ASSERT_EQ(records.back(), std::byte{0xee}) << name_of(isa);
          if (first_records.empty()) first_records = records;
          ASSERT_EQ(records, first_records) << name_of(isa);
          ASSERT_EQ(got, back) << name_of(isa);
        }
      }
    }
  }
}

// Whoever encodes or decodes which blocks, and in whatever mode the processor is.
TEST(CodedRecords, DoNotDependOnCutsAndModes) {
  const uint64_t seed = 54, elements = 5 * kCodeBlockElements + 3;
  std::mt19937_64 random(seed);
  const std::vector<float> values = drawn(random, elements);
  const RecordCodec codec;
  const auto* given = reinterpret_cast<const std::byte*>(values.data());
  for (const BlockCode code : {BlockCode::int8, BlockCode::int4}) {
    std::vector<std::byte> whole(records_bytes(code, elements)), parts(whole.size());
    codec.encode(code, Dtype::fp32, given, elements, whole.data());
    std::vector<float> all(elements), some(elements);
    codec.decode(code, whole.data(), elements, Dtype::fp32, reinterpret_cast<std::byte*>(all.data()));
    const FlushScope flushed;
    for (uint64_t first = 0; first < elements; first += 2 * kCodeBlockElements) {
      const uint64_t count = std::min(2 * kCodeBlockElements, elements - first);
      std::byte* records = parts.data() + records_bytes(code, first);
      codec.encode(code, Dtype::fp32, given + first * sizeof(float), count, records);
      codec.decode(code, records, count, Dtype::fp32, reinterpret_cast<std::byte*>(some.data() + first));
    }
    EXPECT_EQ(parts, whole) << name_of(code) << ", seed " << seed;
    EXPECT_EQ(std::memcmp(all.data(), some.data(), elements * sizeof(float)), 0) << name_of(code) << ", seed " << seed;
  }
}

TEST(CodedRecords, AreWithinHalfAStepKeepZerosAndCarryOverflowOn) {
  const RecordCodec codec;
  std::vector<float> values(3 * kCodeBlockElements, 0.0f), back(values.size());
  for (uint64_t i = 0; i < kCodeBlockElements; ++i) values[i] = std::sin(static_cast<float>(i)) * 3;
  values[2 * kCodeBlockElements + 7] = kInfinity;
  for (const BlockCode code : {BlockCode::int8, BlockCode::int4}) {
    std::vector<std::byte> records(records_bytes(code, values.size()));
    codec.encode(code, Dtype::fp32, reinterpret_cast<const std::byte*>(values.data()), values.size(), records.data());
    codec.decode(code, records.data(), values.size(), Dtype::fp32, reinterpret_cast<std::byte*>(back.data()));
    const float step = 3.0f / (code == BlockCode::int8 ? 127 : 7);
    for (uint64_t i = 0; i < kCodeBlockElements; ++i) {
      EXPECT_LE(std::fabs(back[i] - values[i]), step / 2 * 1.0001f) << name_of(code) << ' ' << i;
      EXPECT_EQ(arithmetic::bits_of(back[kCodeBlockElements + i]), 0u);
      EXPECT_TRUE(std::isnan(back[2 * kCodeBlockElements + i]));
    }
  }
  EXPECT_EQ(record_bytes(BlockCode::int8), 68u);
  EXPECT_EQ(record_bytes(BlockCode::int4), 36u);
}

}  // namespace
}  // namespace penstock::cpu_optim
