// Block quantisation in its host build. The golden figures are what bitsandbytes 0.50.2 (CPU, torch 2.13.0) makes of
// the same numbers: quantize_4bit(..., quant_type="nf4"), dequantize_4bit, int8_vectorwise_quant.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_optim/block_codes.h"
#include "cpu_optim/flush_scope.h"
#include "gpu/host_kernels.h"
#include "tests/gpu/adversarial.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::gpu {
namespace {

using kernel::BlockCode;

constexpr BlockCode kCodes[] = {BlockCode::int8, BlockCode::int4, BlockCode::nf4};

// Spread evenly over [-2^-5, 2^-5), exact in fp32, the same in every language.
std::vector<float> golden_values(uint32_t count) {
  std::vector<float> values(count);
  for (uint32_t i = 0; i < count; ++i) {
    int32_t drawn = static_cast<int32_t>(arithmetic::mix(i) >> 8) - (1 << 23);
    values[i] = std::ldexp(static_cast<float>(drawn), -28);
  }
  return values;
}

uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100'0000'01b3;
  return hash;
}

struct Quantised {
  std::vector<std::byte> codes;
  std::vector<float> absmax;
};

Quantised quantise(BlockCode code, Dtype dtype, const std::vector<std::byte>& values, uint64_t elements,
                   uint32_t block) {
  Quantised result;
  result.codes.resize(code == BlockCode::int8 ? elements : (elements + 1) / 2);
  result.absmax.resize(ceil_div(elements, block));
  run_on_host(kernel::Quantise{code, values.data(), dtype, result.codes.data(), result.absmax.data(), elements, block});
  return result;
}

Quantised quantise(BlockCode code, const std::vector<float>& values, uint32_t block) {
  return quantise(code, Dtype::fp32, bytes_in(Dtype::fp32, values), values.size(), block);
}

std::vector<float> dequantise(BlockCode code, const Quantised& from, uint64_t elements, uint32_t block) {
  std::vector<float> values(elements);
  run_on_host(kernel::Dequantise{code, from.codes.data(), from.absmax.data(),
                                 reinterpret_cast<std::byte*>(values.data()), Dtype::fp32, elements, block});
  return values;
}

TEST(QuantiseKernel, GivesTheCodesOfBitsandbytesInNf4) {
  std::vector<float> values = golden_values(256);
  std::fill(values.begin() + 64, values.begin() + 128, 0.0f);
  Quantised quantised = quantise(BlockCode::nf4, values, 64);
  std::string hex;
  for (std::byte byte : quantised.codes) {
    hex += "0123456789abcdef"[static_cast<int>(byte) >> 4];
    hex += "0123456789abcdef"[static_cast<int>(byte) & 15];
  }
  EXPECT_EQ(hex,
            "05d3e4b9e2c0a2bf13011381607298f2109742c5f316d8ed1101df6df104a50e"
            "7777777777777777777777777777777777777777777777777777777777777777"
            "871888aecc2cd13d42efb2654393413103209fa09c52931f0f6eeef03d4797e9"
            "e00f9ea0d8bec2fee56ba53297904efc2a81edb13d5c111b0a2e7f8042cf02ec");
  EXPECT_EQ(quantised.absmax, (std::vector<float>{0x1.0p-5f, 0.0f, 0x1.fd6fb0p-6f, 0x1.ff6948p-6f}));
  std::vector<float> back = dequantise(BlockCode::nf4, quantised, 256, 64);
  EXPECT_EQ(fnv1a(std::as_bytes(std::span(back))), 0xc839'91f3'bb83'7a29u);
}

TEST(QuantiseKernel, GivesTheBytesOfBitsandbytesInNf4OverAMillionElements) {
  struct Golden {
    uint32_t block;
    uint64_t codes, absmax, values;
  };
  const Golden kGolden[] = {{64, 0xbabc1addb65c6a1b, 0xa1b14854ca8abc02, 0xdde0aeb0c42c14ce},
                            {256, 0x50dc1b1aeedb439f, 0xf8c1c693fc415ffd, 0xd6a66f160dafa64d},
                            {4096, 0x1a89bf57649d499f, 0x728a6cbaa3c9ecc5, 0x245e59b4716f3514}};
  std::vector<float> values = golden_values(1 << 20);
  for (const Golden& golden : kGolden) {
    Quantised quantised = quantise(BlockCode::nf4, values, golden.block);
    EXPECT_EQ(fnv1a(quantised.codes), golden.codes) << golden.block;
    EXPECT_EQ(fnv1a(std::as_bytes(std::span(quantised.absmax))), golden.absmax) << golden.block;
    std::vector<float> back = dequantise(BlockCode::nf4, quantised, values.size(), golden.block);
    EXPECT_EQ(fnv1a(std::as_bytes(std::span(back))), golden.values) << golden.block;
  }
}

TEST(QuantiseKernel, GivesTheCodesOfBitsandbytesInInt8) {
  std::vector<std::byte> half(128);
  run_on_host(kernel::Cast{reinterpret_cast<const std::byte*>(golden_values(64).data()), half.data(), Dtype::fp32,
                           Dtype::fp16, 64});
  Quantised quantised = quantise(BlockCode::int8, Dtype::fp16, half, 64, 64);
  const int kWanted[64] = {-127, -23,  80,   -44,  89,  -35, 40,  20,  105, -61,  56,   -123, 29, -66, 45,   121,
                           -94,  -51,  -117, -100, -91, -54, 13,  -84, -15, -123, -4,   -72,  18, 6,   115,  -62,
                           -106, -115, 25,   3,    -31, -73, 57,  -20, 122, -46,  -104, -17,  76, 6,   89,   79,
                           -102, -104, -118, -100, 72,  123, -16, 71,  117, -96,  -114, -38,  27, -21, -119, 83};
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(static_cast<int>(static_cast<int8_t>(quantised.codes[static_cast<size_t>(i)])), kWanted[i]) << i;
  }
}

// Half the largest distance between two codes, in parts of the block's largest magnitude, and a little for rounding.
double worst_error(BlockCode code) {
  return code == BlockCode::int8 ? 0.5 / 127 + 1e-6 : code == BlockCode::int4 ? 0.5 / 7 + 1e-6 : 0.152 + 1e-6;
}

TEST(QuantiseKernel, ReturnsWithinHalfAStepForEveryFormatBlockAndLength) {
  for (BlockCode code : kCodes) {
    for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      for (uint32_t block : {64u, 128u, 512u, 4096u}) {
        for (uint64_t length : {1u, 2u, 63u, 65u, 4097u, 20'003u}) {
          std::vector<float> values = adversarial_floats(length, length + block, 0.02f, Tiny::kept);
          for (float& value : values) value = std::abs(value) < 100 ? value : 0.5f;
          std::vector<std::byte> bytes = bytes_in(dtype, values);
          std::vector<float> wide(length);
          run_on_host(
              kernel::Cast{bytes.data(), reinterpret_cast<std::byte*>(wide.data()), dtype, Dtype::fp32, length});
          Quantised quantised = quantise(code, dtype, bytes, length, block);
          std::vector<float> back = dequantise(code, quantised, length, block);
          double largest = 0;  // of the block
          for (uint64_t i = 0; i < length; ++i) {
            if (i % block == 0) {
              largest = 0;
              for (uint64_t j = i; j < std::min(length, i + block); ++j) {
                largest = std::max(largest, std::abs(static_cast<double>(wide[j])));
              }
            }
            ASSERT_EQ(quantised.absmax[i / block], largest < 0x1p-120 ? 0.0f : static_cast<float>(largest));
            ASSERT_LE(std::abs(static_cast<double>(back[i]) - wide[i]), worst_error(code) * largest + 0x1p-120)
                << "element " << i << " of " << length << ", blocks of " << block << ", code " << static_cast<int>(code)
                << ", " << name_of(dtype);
          }
        }
      }
    }
  }
}

TEST(QuantiseKernel, KeepsTheLargestOfABlockAndZeroExactly) {
  for (BlockCode code : kCodes) {
    std::vector<float> values(64, 0.0f);
    values[7] = 0.75f;
    std::vector<float> back = dequantise(code, quantise(code, values, 64), 64, 64);
    EXPECT_EQ(back, values) << static_cast<int>(code);
  }
}

TEST(QuantiseKernel, MakesABlockNanThatHoldsOneAndLeavesItsNeighboursAlone) {
  for (BlockCode code : kCodes) {
    for (float bad : {INFINITY, std::bit_cast<float>(0xffc0'0001u)}) {
      std::vector<float> values(192, 1.0f);
      values[64 + 30] = bad;
      std::vector<float> back = dequantise(code, quantise(code, values, 64), 192, 64);
      for (uint64_t i = 0; i < 192; ++i) EXPECT_EQ(std::isnan(back[i]), i / 64 == 1) << i;
    }
  }
}

TEST(QuantiseKernel, PutsTheFirstOfTwoInTheHighHalfAndZeroAfterAnOddEnd) {
  EXPECT_EQ(quantise(BlockCode::int4, {7, -7, 1}, 64).codes,
            (std::vector<std::byte>{std::byte{0xf1}, std::byte{0x98}}));
  EXPECT_EQ(quantise(BlockCode::nf4, {1, -1, 1}, 64).codes, (std::vector<std::byte>{std::byte{0xf0}, std::byte{0xf7}}));
}

// The CPU's blocks have the length that weights rest in.
TEST(QuantiseKernel, HasACpuTwinThatGivesTheSameBits) {
  constexpr uint32_t kBlock = kCodeBlockElements;
  for (BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    for (uint64_t length : {1u, 2u, 63u, 64u, 65u, 4097u, 200'003u}) {
      std::vector<float> values = adversarial_floats(length, length, 0.02f, Tiny::kept);
      for (size_t i = 128; i < std::min<size_t>(length, 192); ++i) values[i] = 0;
      for (size_t i = 192; i < std::min<size_t>(length, 256); ++i) values[i] = std::ldexp(1.0f, -119 - (i % 3));
      const Quantised wanted = quantise(code, values, kBlock);
      Quantised made{std::vector<std::byte>(wanted.codes.size()), std::vector<float>(wanted.absmax.size())};
      cpu_optim::quantise(code, values, made.codes.data(), made.absmax.data());
      ASSERT_EQ(made.codes, wanted.codes) << length;
      ASSERT_EQ(std::memcmp(made.absmax.data(), wanted.absmax.data(), made.absmax.size() * sizeof(float)), 0);
      for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        const uint64_t size = bytes_of(dtype);
        std::vector<std::byte> whole(length * size), mine(length * size);
        run_on_host(
            kernel::Dequantise{code, wanted.codes.data(), wanted.absmax.data(), whole.data(), dtype, length, kBlock});
        // In three runs, which begin and end where they like.
        const uint64_t cuts[] = {0, length / 3, length / 2, length};
        const cpu_optim::FlushScope flushing;  // whatever the caller's mode
        for (size_t i = 0; i < 3; ++i) {
          cpu_optim::dequantise({code, made.codes.data(), made.absmax.data()}, cuts[i], cuts[i + 1] - cuts[i], dtype,
                                mine.data() + cuts[i] * size);
        }
        ASSERT_EQ(mine, whole) << name_of(code) << " to " << name_of(dtype) << ", " << length << " elements";
      }
    }
  }
}

TEST(QuantiseKernelDeathTest, RefusesBlocksThatAreNoPowerOfTwo) {
  EXPECT_DEATH(quantise(BlockCode::nf4, std::vector<float>(96), 96), "quantising blocks of 96 elements");
}

}  // namespace
}  // namespace penstock::gpu
