// What PlainTraining computes with the words of plain memory: a value at a time, as the formats are defined, and by no
// kernel of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tiering/state_layout.h"

namespace penstock::tools {

template <typename Word>
Word word(const std::byte* bytes, uint64_t index) {
  Word value;
  std::memcpy(&value, bytes + index * sizeof(Word), sizeof(Word));
  return value;
}

template <typename Word>
void put_word(std::byte* bytes, uint64_t index, Word value) {
  std::memcpy(bytes + index * sizeof(Word), &value, sizeof(Word));
}

float value_of(const std::byte* bytes, uint64_t index, Dtype dtype);
void put_value(std::byte* bytes, uint64_t index, Dtype dtype, float value);
// The bits of a value, of whatever width.
uint32_t word_at(const std::byte* bytes, uint64_t index, Dtype dtype);

// The sum of a gradient's squares: blocks of 64 Ki elements in order, each of 32 running sums joined as a tree.
double square_sum(const std::byte* gradient, uint64_t elements, Dtype dtype);

// What is left of values in codes: block after block, as tiering/arithmetic/block_codes.h defines it.
void round_to(BlockCode code, std::vector<float>& values);

}  // namespace penstock::tools
