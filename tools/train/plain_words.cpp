#include "tools/train/plain_words.h"

#include <algorithm>
#include <cmath>

#include "tiering/arithmetic/block_codes.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::tools {

float value_of(const std::byte* bytes, uint64_t index, Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return word<float>(bytes, index);
    case Dtype::bf16:
      return arithmetic::float_of_bf16(word<uint16_t>(bytes, index));
    default:
      return arithmetic::float_of_fp16(word<uint16_t>(bytes, index));
  }
}

void put_value(std::byte* bytes, uint64_t index, Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::fp32:
      return put_word(bytes, index, value);
    case Dtype::bf16:
      return put_word(bytes, index, arithmetic::bf16_of_float(value));
    default:
      return put_word(bytes, index, arithmetic::fp16_of_float(value));
  }
}

uint32_t word_at(const std::byte* bytes, uint64_t index, Dtype dtype) {
  switch (bytes_of(dtype)) {
    case 4:
      return word<uint32_t>(bytes, index);
    case 2:
      return word<uint16_t>(bytes, index);
    default:
      return word<uint8_t>(bytes, index);
  }
}

double square_sum(const std::byte* gradient, uint64_t elements, Dtype dtype) {
  double total = 0;
  for (uint64_t block = 0; block < elements; block += 65536) {
    double lane[32] = {};
    for (uint64_t i = block; i < std::min(elements, block + 65536); ++i) {
      const double x = value_of(gradient, i, dtype);
      lane[(i - block) % 32] += x * x;
    }
    for (int width = 16; width >= 1; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    total += lane[0];
  }
  return total;
}

void round_to(BlockCode code, std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += kCodeBlockElements) {
    const size_t end = std::min<size_t>(values.size(), first + kCodeBlockElements);
    float largest = 0;
    for (size_t i = first; i < end; ++i) {
      largest = std::isnan(values[i]) ? HUGE_VALF : std::max(largest, std::fabs(values[i]));
    }
    const float scale = arithmetic::block_scale(largest);
    const float factor = scale > 0 ? arithmetic::code_factor(code, scale) : 0;
    for (size_t i = first; i < end; ++i) {
      const float x = std::isnan(scale) ? 0 : values[i] * factor;
      if (code == BlockCode::int8) {
        values[i] = arithmetic::int8_value(static_cast<uint32_t>(arithmetic::whole(x)), scale);
        continue;
      }
      if (code == BlockCode::int4) {
        values[i] = arithmetic::int4_value(static_cast<uint32_t>(arithmetic::whole(x) + 8), scale);
        continue;
      }
      uint32_t nearest = 0;
      while (nearest < arithmetic::kNf4Midpoints && x > arithmetic::nf4_midpoint(nearest)) ++nearest;
      values[i] = arithmetic::nf4_value(nearest) * scale;
    }
  }
}

}  // namespace penstock::tools
