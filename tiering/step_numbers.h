// The numbers of one optimizer step, the same for all tiles of a parameter group, on the CPU and on a device.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tiering/hyper.h"

namespace penstock {

struct StepNumbers {
  Coefficients coefficients;
  // Every gradient is multiplied by it once, in fp32: 1/loss scale times clip factor, joined in double by the caller.
  // Tiers agree to the bit where it is 0 or its magnitude from 2^-100 to 2^7 (arithmetic/optimizer.h says why).
  float gradient_scale = 1;
  // Stochastic rounding draws from (seed, step, index of the element) and from nothing else. Skipped steps are not
  // counted.
  uint64_t seed = 0;
  uint64_t step = 0;
};

// The numbers of a run of a unit's elements: from the end of the run before it, or the unit's first, to `end_element`.
struct NumbersRun {
  StepNumbers numbers;
  uint64_t end_element = std::numeric_limits<uint64_t>::max();
  // The run keeps what it has: its parameter has no gradient in this step.
  bool untouched = false;
};

using UnitNumbers = std::vector<NumbersRun>;

}  // namespace penstock
