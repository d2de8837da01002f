#include "tiering/arithmetic/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace penstock::arithmetic {
namespace {

// As processors widen them: a NaN keeps its payload and becomes quiet.
TEST(Convert, WidensEveryHalfToTheFloatThatItIs) {
  for (uint32_t half = 0; half < 0x1'0000; ++half) {
    const int exponent = static_cast<int>(half >> 10 & 0x1f), fraction = static_cast<int>(half & 0x3ff);
    float expected =
        std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 0x400), std::max(exponent, 1) - 25);
    if (exponent == 0x1f) {
      expected = fraction == 0 ? std::numeric_limits<float>::infinity()
                               : std::bit_cast<float>(0x7fc0'0000 | static_cast<uint32_t>(fraction) << 13);
    }
    const uint32_t sign = (half & 0x8000) << 16;
    ASSERT_EQ(std::bit_cast<uint32_t>(float_of_fp16(static_cast<uint16_t>(half))),
              std::bit_cast<uint32_t>(expected) | sign)
        << "half " << half;
  }
}

}  // namespace
}  // namespace penstock::arithmetic
