#include "cpu_optim/gradient.h"

#include <gtest/gtest.h>

#include <cfenv>

#include "cpu_optim/flush_scope.h"
#include "tests/cpu_optim/tile_world.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {
namespace {

constexpr Dtype kDtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};
constexpr uint64_t kLengths[] = {0, 1, 63, 64, 65, 1000, kBlockElements + 77};

class GradientKernelsOn : public testing::TestWithParam<Isa> {
 protected:
  GradientKernels kernels{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Isas, GradientKernelsOn, testing::ValuesIn(available_isas()),
                         [](const auto& isa) { return name_of(isa.param); });

TEST_P(GradientKernelsOn, AccumulatesAsAPlainLoopDoes) {
  Random random(1);
  for (Dtype dtype : kDtypes) {
    for (uint64_t n : kLengths) {
      auto source = gradients(dtype, n, random, Numbers::ordinary);
      std::vector<float> sums(n + 3), expected(n + 3);
      for (uint64_t i = 0; i < sums.size(); ++i) sums[i] = expected[i] = random.normal(1);
      for (uint64_t i = 0; i < n; ++i) expected[i] += get(source.data(), dtype, i);
      kernels.accumulate(dtype, source.data(), sums.data(), n);
      ASSERT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * 4), 0) << name_of(dtype) << ' ' << n;
    }
  }
}

// Denormals, ties, NaN payloads and all.
TEST_P(GradientKernelsOn, CastsEveryNumberAsTheDefinitionDoes) {
  Random random(2);
  for (Dtype from : kDtypes) {
    for (Dtype to : kDtypes) {
      for (uint64_t n : kLengths) {
        std::vector<std::byte> source(n * bytes_of(from)), target(n * bytes_of(to) + 4), expected(target.size());
        for (std::byte& byte : source) byte = static_cast<std::byte>(random.below(256));
        for (uint64_t i = 0; i < n; ++i) {
          put(expected.data(), to, i, arithmetic::PlainNumbers::one_nan(get(source.data(), from, i)));
        }
        kernels.cast(from, source.data(), to, target.data(), n);
        ASSERT_EQ(target, expected) << name_of(from) << " to " << name_of(to) << ' ' << n;
      }
    }
  }
}

// Denormals, NaN payloads and all; wherever the sums are written to.
TEST_P(GradientKernelsOn, AddsUpSeveralAsIfOneAfterAnother) {
  Random random(3);
  for (Dtype from : kDtypes) {
    for (Dtype to : kDtypes) {
      for (uint64_t n : kLengths) {
        const size_t count = 1 + random.below(5), offset = random.below(40) * bytes_of(to);
        std::vector<std::vector<std::byte>> sources;
        std::vector<const std::byte*> places;
        std::vector<float> sums(n);
        for (size_t i = 0; i < count; ++i) {
          sources.push_back(gradients(from, n, random, Numbers::adversarial));
          if (i == 0) {
            kernels.cast(from, sources[i].data(), Dtype::fp32, reinterpret_cast<std::byte*>(sums.data()), n);
          } else {
            kernels.accumulate(from, sources[i].data(), sums.data(), n);
          }
        }
        for (const auto& source : sources) places.push_back(source.data());
        std::vector<std::byte> target(offset + n * bytes_of(to) + 4, std::byte{9}), expected = target;
        kernels.cast(Dtype::fp32, reinterpret_cast<std::byte*>(sums.data()), to, expected.data() + offset, n);
        kernels.sum(from, places, to, target.data() + offset, n);
        ASSERT_EQ(target, expected) << count << " of " << name_of(from) << " to " << name_of(to) << ' ' << n;
      }
    }
  }
}

TEST_P(GradientKernelsOn, LeavesOneNanInSums) {
  constexpr uint64_t kElements = 64;
  const auto payload = std::bit_cast<float>(0x7fc12345u), other = std::bit_cast<float>(0xffc54321u);
  for (auto [a, b] : {std::pair(payload, other), {payload, 1.0f}, {1.0f, other}, {INFINITY, -INFINITY}}) {
    std::vector<float> sums(kElements, a), more(kElements, b);
    kernels.accumulate(Dtype::fp32, reinterpret_cast<const std::byte*>(more.data()), sums.data(), kElements);
    for (float sum : sums) ASSERT_EQ(std::bit_cast<uint32_t>(sum), 0x7fc00000u);
  }
}

TEST_P(GradientKernelsOn, SumsSquaresInTheOrderThatIsPromised) {
  Random random(3);
  for (Dtype dtype : kDtypes) {
    for (uint64_t n : kLengths) {
      auto values = gradients(dtype, n, random, Numbers::ordinary);
      std::vector<double> sums(ceil_div(n, kBlockElements)), expected;
      for (uint64_t first = 0; first < n; first += kBlockElements) {
        double lanes[32] = {};
        for (uint64_t i = first; i < std::min(n, first + kBlockElements); ++i) {
          const double x = get(values.data(), dtype, i);
          lanes[i % 32] += x * x;
        }
        for (int half : {16, 8, 4, 2, 1}) {
          for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
        }
        expected.push_back(lanes[0]);
      }
      kernels.square_sums(dtype, values.data(), n, sums);
      ASSERT_EQ(sums, expected) << name_of(dtype) << ' ' << n;
    }
  }
}

struct Inputs {
  std::vector<std::byte> values, wide;
  std::vector<float> sums;

  Inputs(Dtype dtype, uint64_t elements, float size) : sums(elements) {
    Random random(5);
    values = gradients(dtype, elements, random, Numbers::ordinary, size);
    wide = gradients(Dtype::fp32, elements, random, Numbers::ordinary, 1.0f);
    for (float& sum : sums) sum = random.normal(size) * 1e-3f;
  }
};
struct Results {
  std::vector<double> squares;
  std::vector<float> sums;
  std::vector<std::byte> halves;
  bool operator==(const Results&) const = default;
};
Results results_of(const GradientKernels& kernels, Dtype dtype, const Inputs& inputs) {
  const uint64_t elements = inputs.sums.size();
  Results results{std::vector<double>(1), inputs.sums, std::vector<std::byte>(elements * 2)};
  kernels.square_sums(dtype, inputs.values.data(), elements, results.squares);
  kernels.accumulate(dtype, inputs.values.data(), results.sums.data(), elements);
  kernels.cast(Dtype::fp32, inputs.wide.data(), dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp16, results.halves.data(),
               elements);
  return results;
}

TEST_P(GradientKernelsOn, RoundToNearestHoweverTheCallerRounds) {
  for (Dtype dtype : kDtypes) {
    const Inputs inputs(dtype, 3 * 64 + 5, 1.0f);
    const Results nearest = results_of(kernels, dtype, inputs);
    for (int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(rounding);
      const Results rounded = results_of(kernels, dtype, inputs);
      EXPECT_EQ(std::fegetround(), rounding);
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(rounded == nearest) << name_of(dtype) << ", rounding mode " << rounding;
    }
  }
}

TEST_P(GradientKernelsOn, TakeDenormalsForZeroWhetherOrNotTheCallerDoes) {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {  // those of fp16 are none in fp32
    const Inputs tiny(dtype, 3 * 64 + 5, 0x1p-130f);
    const Results kept = results_of(kernels, dtype, tiny);
    EXPECT_EQ(kept.squares, std::vector<double>{0}) << name_of(dtype);
    EXPECT_EQ(kept.sums, std::vector<float>(tiny.sums.size())) << name_of(dtype);
    const FlushScope flushing;
    EXPECT_TRUE(results_of(kernels, dtype, tiny) == kept) << name_of(dtype);
  }
}

TEST(Total, AddsInBlockOrder) {
  const double sums[] = {1e300, 1.0, -1e300, 3.0};
  EXPECT_EQ(total(sums), ((1e300 + 1.0) - 1e300) + 3.0);
}

}  // namespace
}  // namespace penstock::cpu_optim
