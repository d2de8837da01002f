#include "cpu_optim/block_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu_optim/flush_scope.h"
#include "tiering/arithmetic/block_codes.h"
#include "tiering/check.h"
#include "tiering/tier.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kBlock = kCodeBlockElements;

uint32_t nf4_code(float value) {
  uint32_t below = 0;
  for (uint32_t i = 0; i < arithmetic::kNf4Midpoints; ++i) below += value > arithmetic::nf4_midpoint(i) ? 1u : 0u;
  return below;
}

uint32_t code_of(BlockCode code, float value) {
  return code == BlockCode::int8 ? static_cast<uint32_t>(arithmetic::whole(value)) & 0xffu : nf4_code(value);
}

// Magnitudes are compared as integers, in which NaN is the largest of all.
float scale_of(std::span<const float> values) {
  uint32_t largest = 0;
  for (float value : values) largest = std::max(largest, arithmetic::bits_of(value) & arithmetic::kMagnitudeBits);
  return arithmetic::block_scale(arithmetic::float_of(largest));
}

void quantise_block(BlockCode code, std::span<const float> values, std::byte* codes, float& scale) {
  scale = scale_of(values);
  const bool has_codes = scale > 0;
  const float factor = has_codes ? arithmetic::code_factor(code, scale) : 0.0f;
  std::array<uint32_t, kBlock> coded;
  coded.fill(arithmetic::zero_code(code));
  for (size_t i = 0; has_codes && i < values.size(); ++i) coded[i] = code_of(code, values[i] * factor);
  if (code == BlockCode::int8) {
    for (size_t i = 0; i < values.size(); ++i) codes[i] = static_cast<std::byte>(coded[i]);
  } else {
    for (size_t i = 0; i < values.size(); i += 2) codes[i / 2] = static_cast<std::byte>(coded[i] << 4 | coded[i + 1]);
  }
}

// A value in `kDtype`, as an integer of its size.
template <Dtype kDtype>
auto narrow(float value) {
  if constexpr (kDtype == Dtype::fp32) {
    const uint32_t bits = arithmetic::bits_of(value);
    return arithmetic::is_nan(bits) ? 0x7fc0'0000u : bits;
  } else if constexpr (kDtype == Dtype::bf16) {
    return arithmetic::bf16_of_float(value);
  } else {
    return arithmetic::fp16_of_float(value);
  }
}

// A whole block. Of nf4 there are but 16 values in it, each rounded once.
template <Dtype kDtype>
void dequantise_block(BlockCode code, const std::byte* codes, float scale, std::byte* target) {
  using Word = decltype(narrow<kDtype>(0));
  std::array<Word, kBlock> words;
  if (code == BlockCode::int8) {
    for (size_t i = 0; i < kBlock; ++i) {
      words[i] = narrow<kDtype>(arithmetic::int8_value(static_cast<uint32_t>(codes[i]), scale));
    }
  } else {
    std::array<Word, 16> values;
    for (uint32_t i = 0; i < values.size(); ++i) values[i] = narrow<kDtype>(arithmetic::nf4_value(i) * scale);
    for (size_t i = 0; i < kBlock / 2; ++i) {
      const auto pair = static_cast<uint32_t>(codes[i]);
      words[2 * i] = values[pair >> 4];
      words[2 * i + 1] = values[pair & 0xfu];
    }
  }
  std::memcpy(target, words.data(), sizeof words);
}

template <Dtype kDtype>
void dequantise_all(const CodedRun& run, uint64_t first, uint64_t elements, std::byte* target) {
  constexpr uint64_t kSize = bytes_of(kDtype);
  const uint64_t code_bytes = run.code == BlockCode::int8 ? kBlock : kBlock / 2, end = first + elements;
  for (uint64_t at = first; at < end;) {
    const uint64_t block = at / kBlock, from = at % kBlock, to = std::min(kBlock, end - block * kBlock);
    const std::byte* codes = run.codes + block * code_bytes;
    if (from == 0 && to == kBlock) {
      dequantise_block<kDtype>(run.code, codes, run.scales[block], target);
    } else {
      // Where the run ends within the block, so may its codes.
      std::array<std::byte, kBlock> some{};
      const uint64_t there = run.code == BlockCode::int8 ? to : ceil_div(to, 2);
      std::memcpy(some.data(), codes, there);
      std::array<std::byte, kBlock * kSize> whole;
      dequantise_block<kDtype>(run.code, some.data(), run.scales[block], whole.data());
      std::memcpy(target, whole.data() + from * kSize, (to - from) * kSize);
    }
    target += (to - from) * kSize;
    at += to - from;
  }
}

void expect_known(BlockCode code) {
  CHECK(code == BlockCode::int8 || code == BlockCode::nf4, "weights rest in int8 or nf4, not ", name_of(code));
}

}  // namespace

void quantise(BlockCode code, std::span<const float> values, std::byte* codes, float* scales) {
  expect_known(code);
  const DenormalScope denormals_count;
  for (uint64_t first = 0; first < values.size(); first += kBlock) {
    const uint64_t count = std::min<uint64_t>(kBlock, values.size() - first);
    quantise_block(code, values.subspan(first, count), codes + (code == BlockCode::int8 ? first : first / 2),
                   scales[first / kBlock]);
  }
}

void dequantise(const CodedRun& run, uint64_t first, uint64_t elements, Dtype dtype, std::byte* target) {
  expect_known(run.code);
  const DenormalScope denormals_count;
  switch (dtype) {
    case Dtype::fp32:
      return dequantise_all<Dtype::fp32>(run, first, elements, target);
    case Dtype::bf16:
      return dequantise_all<Dtype::bf16>(run, first, elements, target);
    case Dtype::fp16:
      return dequantise_all<Dtype::fp16>(run, first, elements, target);
    default:
      CHECK(false, "nobody computes with weights in ", name_of(dtype));
  }
}

}  // namespace penstock::cpu_optim
