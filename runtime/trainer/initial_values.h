// What training from scratch begins with: for each element a function of seed, parameter and index alone, so that it
// can be made in pieces, in any order.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/trainer/model.h"

namespace penstock::trainer {

// Elements [first, first + values.size()) of the unit. Padding is zero.
void fill_initial_values(const Model& model, uint64_t seed, uint32_t unit, uint64_t first, std::span<float> values);

}  // namespace penstock::trainer
