#include "cpu_optim/block_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/kernels.h"
#include "cpu_optim/streams.h"
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

// What is written of a block or more has left the caches before it is computed with.
constexpr uint64_t kStreamElements = kBlockElements;

// Blocks that lie whole in the run.
void dequantise_blocks(DequantiseKernel kernel, const CodedRun& run, uint64_t code_bytes, uint64_t first,
                       uint64_t blocks, std::byte* target) {
  const bool streams = blocks * kBlock >= kStreamElements && may_stream_to(target);
  kernel(run.codes + first * code_bytes, run.scales + first, blocks, target, streams);
  if (streams) end_streams();
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

void dequantise(const CodedRun& run, uint64_t first, uint64_t elements, Dtype dtype, std::byte* target, Isa isa) {
  expect_known(run.code);
  CHECK(static_cast<size_t>(dtype) < kGradientDtypes, "nobody computes with weights in ", name_of(dtype));
  const DenormalScope denormals_count;
  const DequantiseKernel kernel = kernels_of(isa).dequantise[static_cast<size_t>(run.code)][static_cast<size_t>(dtype)];
  const uint64_t size = bytes_of(dtype), code_bytes = run.code == BlockCode::int8 ? kBlock : kBlock / 2;
  const uint64_t end = first + elements;
  for (uint64_t at = first; at < end;) {
    const uint64_t block = at / kBlock, from = at % kBlock;
    if (const uint64_t whole = (end - at) / kBlock; from == 0 && whole > 0) {
      dequantise_blocks(kernel, run, code_bytes, block, whole, target);
      target += whole * kBlock * size;
      at += whole * kBlock;
      continue;
    }
    // Where the run ends within the block, so may its codes.
    const uint64_t to = std::min(kBlock, end - block * kBlock);
    std::array<std::byte, kBlock> codes{};
    std::memcpy(codes.data(), run.codes + block * code_bytes, run.code == BlockCode::int8 ? to : ceil_div(to, 2));
    alignas(64) std::array<std::byte, kBlock * sizeof(float)> values;
    kernel(codes.data(), run.scales + block, 1, values.data(), /*streams=*/false);
    std::memcpy(target, values.data() + from * size, (to - from) * size);
    target += (to - from) * size;
    at += to - from;
  }
}

}  // namespace penstock::cpu_optim
