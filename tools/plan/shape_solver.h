// Completes the shape of a model from what the user gives (`7e9 parameters, 32 layers`).
#pragma once

#include <string_view>

#include "tiering/status.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

// 0: not said.
struct ShapeWish {
  uint64_t parameters = 0;
  uint64_t layers = 0;
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t ffn = 0;
  uint64_t vocab = 0;

  bool empty() const { return (parameters | layers | hidden | heads | kv_heads | ffn | vocab) == 0; }
};

// A LLaMA-like shape. What is not said is derived so that the parameters come out right within 1 %; what is said and
// cannot come out right is refused.
Result<ModelShape> solve_shape(const ShapeWish& wish);

}  // namespace penstock::tools
