// Rope: rotary positions, and the ways in which they are stretched to longer sequences than a model was trained with.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock::trainer {

enum class RopeKind : uint8_t { plain, linear, dynamic, yarn, llama3 };

// Rotary positions: the angle of pair i at position p is p times the i-th of rope_frequencies().
struct Rope {
  RopeKind kind = RopeKind::plain;
  double theta = 10000;
  double factor = 1;
  double original_positions = 0;                               // of the training that the scaling stretches
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  double attention_factor = 1;                                 // yarn: scales cosine and sine
  bool truncate = true;                                        // yarn
};

// One per pair of a head's elements. `length` is the sequence's, which dynamic scaling depends on.
std::vector<float> rope_frequencies(const Rope& rope, uint32_t head_size, uint64_t length);

}  // namespace penstock::trainer
