// The light kernels in their host build: against plain references written here, and against cpu_optim.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_optim/gradient.h"
#include "gpu/host_kernels.h"
#include "tests/gpu/adversarial.h"

namespace penstock::gpu {
namespace {

// Ragged lengths around packets (4), thread blocks (4096) and norm blocks (65536).
const uint64_t kLengths[] = {0, 1, 3, 4, 5, 1023, 4095, 4096, 4097, 65536, 65537, 200'001};

const Dtype kFloats[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};

std::vector<std::byte> cast(Dtype source, const std::vector<std::byte>& values, Dtype target, uint64_t elements) {
  std::vector<std::byte> result(elements * bytes_of(target));
  run_on_host(kernel::Cast{values.data(), result.data(), source, target, elements});
  return result;
}

template <typename T>
std::vector<std::byte> bytes_of_values(const std::vector<T>& values) {
  std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> values_of_bytes(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The nearer of the two bf16 neighbours, by distances in double.
uint16_t nearest_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  if (std::isinf(value)) return static_cast<uint16_t>(bits >> 16);
  uint16_t down = static_cast<uint16_t>(bits >> 16), up = static_cast<uint16_t>(down + 1);
  auto number = [](uint16_t half) {
    // Infinity stands for the next number that bf16 would have.
    if ((half & 0x7fff) == 0x7f80) return std::ldexp(1.0, 128) * ((half & 0x8000) != 0 ? -1 : 1);
    return static_cast<double>(std::bit_cast<float>(uint32_t{half} << 16));
  };
  double to_down = std::abs(value - number(down)), to_up = std::abs(value - number(up));
  if (to_down != to_up) return to_down < to_up ? down : up;
  return (down & 1) == 0 ? down : up;
}

TEST(CastKernel, WidensEveryHalfExactly) {
  std::vector<uint16_t> halves(65536);
  for (uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16 = values_of_bytes<float>(cast(Dtype::bf16, bytes_of_values(halves), Dtype::fp32, 65536));
  std::vector<float> fp16 = values_of_bytes<float>(cast(Dtype::fp16, bytes_of_values(halves), Dtype::fp32, 65536));
  for (uint32_t i = 0; i < 65536; ++i) {
    float wanted_bf16 = std::bit_cast<float>(i << 16);
    float wanted_fp16 = static_cast<float>(std::bit_cast<_Float16>(halves[i]));
    if (std::isnan(wanted_bf16)) wanted_bf16 = std::bit_cast<float>(0x7fc0'0000);
    if (std::isnan(wanted_fp16)) wanted_fp16 = std::bit_cast<float>(0x7fc0'0000);
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(wanted_bf16)) << std::hex << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(fp16[i]), std::bit_cast<uint32_t>(wanted_fp16)) << std::hex << i;
  }
}

TEST(CastKernel, RoundsOnceToTheNearestTiesToEven) {
  std::vector<float> values = adversarial_floats(1 << 20, 1, 1.0f, Tiny::kept);
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {  // around every tie of both formats, at every exponent
    for (uint32_t fraction : {0x0000u, 0x0800u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u,
                              0x7f'ffffu, 0x7f'f000u, 0x7f'efffu}) {
      values.push_back(std::bit_cast<float>(exponent << 23 | fraction));
      values.push_back(std::bit_cast<float>(exponent << 23 | fraction | 0x8000'0000u));
    }
  }
  uint64_t count = values.size();
  auto bf16 = values_of_bytes<uint16_t>(cast(Dtype::fp32, bytes_of_values(values), Dtype::bf16, count));
  auto fp16 = values_of_bytes<uint16_t>(cast(Dtype::fp32, bytes_of_values(values), Dtype::fp16, count));
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t wanted_fp16 =
        std::isnan(values[i]) ? uint16_t{0x7e00} : std::bit_cast<uint16_t>(static_cast<_Float16>(values[i]));
    ASSERT_EQ(bf16[i], nearest_bf16(values[i])) << std::hexfloat << values[i];
    ASSERT_EQ(fp16[i], wanted_fp16) << std::hexfloat << values[i];
  }
}

// Which payload a NaN keeps while it is widened, processors may decide.
std::vector<std::byte> with_one_nan(const std::vector<std::byte>& bytes) {
  std::vector<float> values = values_of_bytes<float>(bytes);
  for (float& value : values) value = std::isnan(value) ? std::bit_cast<float>(0x7fc0'0000u) : value;
  return bytes_of_values(values);
}

TEST(CastKernel, LeavesTheBytesThatTheCpuLeaves) {
  cpu_optim::GradientKernels cpu(cpu_optim::Isa::scalar);
  for (Dtype source : kFloats) {
    for (Dtype target : kFloats) {
      for (uint64_t length : kLengths) {
        std::vector<std::byte> values = bytes_in(source, adversarial_floats(length, length, 1.0f, Tiny::kept));
        std::vector<std::byte> wanted(length * bytes_of(target));
        cpu.cast(source, values.data(), target, wanted.data(), length);
        if (target == Dtype::fp32) wanted = with_one_nan(wanted);
        ASSERT_EQ(cast(source, values, target, length), wanted) << name_of(source) << " to " << name_of(target);
      }
    }
  }
}

TEST(CastKernel, TakesAnyAlignment) {
  std::vector<std::byte> values = bytes_in(Dtype::fp32, adversarial_floats(5000, 3, 1.0f, Tiny::kept));
  std::vector<std::byte> wanted = cast(Dtype::fp32, values, Dtype::bf16, 5000);
  for (uint64_t skip : {1u, 2u, 3u}) {
    std::vector<std::byte> result((5000 + 1) * 2);
    run_on_host(kernel::Cast{values.data() + 4 * skip, result.data() + 2, Dtype::fp32, Dtype::bf16, 5000 - skip});
    EXPECT_TRUE(std::equal(wanted.begin() + static_cast<int64_t>(2 * skip), wanted.end(), result.begin() + 2));
  }
}

TEST(AccumulateKernel, AddsInFp32AsTheCpuDoes) {
  cpu_optim::GradientKernels cpu(cpu_optim::Isa::scalar);
  for (Dtype source : kFloats) {
    for (uint64_t length : kLengths) {
      // Finite sums: what becomes of a NaN is the next test.
      std::vector<float> values = adversarial_floats(length, 5, 1.0f, Tiny::kept);
      for (float& value : values) value = std::isfinite(value) && std::abs(value) < 1e30f ? value : 1.0f;
      std::vector<std::byte> more = bytes_in(source, values);
      std::vector<float> wanted = adversarial_floats(length, 6, 1.0f, Tiny::kept);
      for (float& value : wanted) value = std::isfinite(value) ? value : 1.0f;
      std::vector<float> sum = wanted;
      cpu.accumulate(source, more.data(), wanted.data(), length);
      run_on_host(kernel::Accumulate{more.data(), source, sum.data(), length});
      ASSERT_EQ(bytes_of_values(sum), bytes_of_values(wanted)) << name_of(source) << ", " << length;
    }
  }
}

TEST(AccumulateKernel, CountsADenormalAsZeroInAndOut) {
  const std::vector<float> more = {0x1p-127f, 0x1p-127f, -0x1p-126f, -0x1p-126f, 0x1p-126f};
  std::vector<float> sum = {1.0f, 0x1p-127f, 0x1.8p-126f, 0x1p-126f, 0x1p-126f};
  std::vector<std::byte> values = bytes_of_values(more);
  run_on_host(kernel::Accumulate{values.data(), Dtype::fp32, sum.data(), sum.size()});
  EXPECT_EQ(sum, (std::vector<float>{1.0f, 0, 0, 0, 0x1p-125f}));
}

TEST(AccumulateKernel, WritesOneNanWhateverCameIn) {
  std::vector<float> more = {std::bit_cast<float>(0x7fa0'0001u), 1.0f, INFINITY};
  std::vector<float> sum = {1.0f, std::bit_cast<float>(0xffff'ffffu), -INFINITY};
  run_on_host(kernel::Accumulate{reinterpret_cast<std::byte*>(more.data()), Dtype::fp32, sum.data(), 3});
  for (float value : sum) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc0'0000u);
}

TEST(ScaleKernel, RoundsTheProductOnce) {
  for (Dtype dtype : kFloats) {
    std::vector<std::byte> values = bytes_in(dtype, adversarial_floats(4099, 7, 1.0f, Tiny::kept));
    std::vector<float> wide = values_of_bytes<float>(cast(dtype, values, Dtype::fp32, 4099));
    for (float& value : wide) value *= 0.3f;
    std::vector<std::byte> wanted = cast(Dtype::fp32, bytes_of_values(wide), dtype, 4099);
    run_on_host(kernel::Scale{values.data(), dtype, 0.3f, 4099});
    EXPECT_EQ(values, wanted) << name_of(dtype);
  }
}

TEST(SquareSumsKernel, AddsInTheOrderOfTheDefinition) {
  for (Dtype dtype : kFloats) {
    for (uint64_t length : kLengths) {
      std::vector<float> values = adversarial_floats(length, 8, 1.0f, Tiny::kept);
      for (float& value : values) value = std::abs(value) < 6e4f ? value : 1.0f;
      std::vector<std::byte> bytes = bytes_in(dtype, values);
      std::vector<float> wide = values_of_bytes<float>(cast(dtype, bytes, Dtype::fp32, length));
      for (float& value : wide) value = std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
      std::vector<double> wanted, sums(ceil_div(length, kBlockElements)), by_cpu(sums.size());
      for (uint64_t begin = 0; begin < length; begin += kBlockElements) {
        double sum[32] = {};
        uint64_t end = std::min(length, begin + kBlockElements);
        for (uint64_t i = begin; i < end; ++i) sum[(i - begin) % 32] += static_cast<double>(wide[i]) * wide[i];
        for (int half = 16; half > 0; half /= 2) {
          for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
        }
        wanted.push_back(sum[0]);
      }
      run_on_host(kernel::SquareSums{bytes.data(), dtype, length, sums.data()});
      cpu_optim::GradientKernels(cpu_optim::Isa::scalar).square_sums(dtype, bytes.data(), length, by_cpu);
      ASSERT_EQ(bytes_of_values(sums), bytes_of_values(wanted)) << name_of(dtype) << ", " << length;
      ASSERT_EQ(bytes_of_values(sums), bytes_of_values(by_cpu)) << name_of(dtype) << ", " << length;
    }
  }
}

TEST(SquareSumsKernel, IsFiniteIfAndOnlyIfEveryElementIs) {
  for (float bad : {INFINITY, -INFINITY, std::bit_cast<float>(0x7fa0'0000u)}) {
    std::vector<float> values(3 * kBlockElements, 3e38f);
    values[kBlockElements + 12345] = bad;
    std::vector<double> sums(3);
    run_on_host(
        kernel::SquareSums{reinterpret_cast<std::byte*>(values.data()), Dtype::fp32, values.size(), sums.data()});
    EXPECT_TRUE(std::isfinite(sums[0]));
    EXPECT_FALSE(std::isfinite(sums[1]));
    EXPECT_TRUE(std::isfinite(sums[2]));
  }
}

TEST(RoundStochasticKernel, RoundsUpAsOftenAsTheDroppedPartSays) {
  constexpr uint64_t kCount = 1 << 18;
  for (uint32_t dropped : {0x0001u, 0x4000u, 0x8000u, 0xc000u}) {
    std::vector<float> values(kCount, std::bit_cast<float>(0x3f80'0000u | dropped));
    std::vector<uint16_t> rounded(kCount);
    run_on_host(kernel::RoundStochastic{values.data(), rounded.data(), kCount, 0, 1, 1});
    double ups = static_cast<double>(std::count(rounded.begin(), rounded.end(), 0x3f81));
    EXPECT_EQ(std::count(rounded.begin(), rounded.end(), 0x3f80), static_cast<int64_t>(kCount - ups));
    // Five standard deviations of a fair draw.
    EXPECT_NEAR(ups / kCount, dropped / 65536.0, 5 * 0.5 / std::sqrt(kCount));
  }
}

TEST(RoundStochasticKernel, DependsOnSeedStepAndElementAlone) {
  std::vector<float> values = adversarial_floats(10'000, 9, 1.0f, Tiny::kept);
  auto rounded = [&](uint64_t begin, uint64_t count, uint64_t seed, uint64_t step) {
    std::vector<uint16_t> result(count);
    run_on_host(
        kernel::RoundStochastic{values.data() + begin, result.data(), count, (1ull << 32) - 5000 + begin, seed, step});
    return result;
  };
  const std::vector<uint16_t> whole = rounded(0, 10'000, 1, 1);
  for (const uint64_t cut : {3333, 6667}) {  // before element 2^32, and behind it
    std::vector<uint16_t> joined = rounded(0, cut, 1, 1);
    const std::vector<uint16_t> rest = rounded(cut, 10'000 - cut, 1, 1);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, whole) << "cut at " << cut;
  }
  EXPECT_NE(rounded(0, 10'000, 2, 1), whole);
  EXPECT_NE(rounded(0, 10'000, 1, 2), whole);
}

TEST(FillKernel, SetsEveryByte) {
  std::vector<std::byte> bytes(1001);
  run_on_host(kernel::Fill{bytes.data() + 1, 999, 0xdb});
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(bytes[1000], std::byte{0});
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xdb}), 999);
}

}  // namespace
}  // namespace penstock::gpu
