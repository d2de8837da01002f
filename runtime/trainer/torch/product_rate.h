// How fast large products run, to say how much of that a model's arithmetic reaches.
#pragma once

#include "runtime/trainer/accelerator.h"
#include "tiering/state_layout.h"

namespace penstock::trainer {

// Operations in a second, the most that squares of a growing side reach. Takes a few hundredths of a second.
double product_flops(Accelerator& accelerator, Dtype dtype);

}  // namespace penstock::trainer
