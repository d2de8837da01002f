// EngineVerbs is what one training step asks of whoever holds the model's state: the engine, or a test's plain memory.
//
// A unit's weights may be touched between acquire() and release() only; afterwards they may lie elsewhere, or nowhere.
// Gradients of a use and micro-batch come between its backward acquire() and release(). A trainable element that
// got none until release() gets none from this use and micro-batch.
//
// Used by one thread. After a refusal the step is given up: the caller ends with that refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiering/state_layout.h"
#include "tiering/status.h"

namespace penstock::trainer {

enum class Direction : uint8_t { forward, backward };

// Where activations wait for backward.
enum class Keeping : uint8_t { in_memory, with_engine };

// One passage of a micro-batch through a use.
struct Passage {
  Direction direction = Direction::forward;
  uint32_t use = 0;
  uint32_t micro_batch = 0;

  bool operator==(const Passage&) const = default;
};

// All of a unit's weights, in the model's dtype. `data` is a multiple of 64 B, so that kernels which choose by
// alignment choose alike wherever the weights lie.
struct UnitWeights {
  uint32_t unit = 0;
  const std::byte* data = nullptr;
  uint64_t elements = 0;
};

class EngineVerbs {
 public:
  virtual ~EngineVerbs() = default;

  // The weights of the use's units, in the order in which the use names them. Valid until release().
  virtual Result<std::span<const UnitWeights>> acquire(const Passage& passage) = 0;
  virtual Status release(const Passage& passage) = 0;

  // Elements [first_element, ...) of the unit's gradient by this use and micro-batch: all of them, a parameter, or a
  // part of one; no element twice. `values` is free again on return.
  virtual Status gradient(const Passage& passage, uint32_t unit, uint64_t first_element, Dtype dtype,
                          std::span<const std::byte> values) = 0;

  // What backward needs of forward, kept elsewhere: put() while forward of the use and micro-batch is acquired, with
  // `index` from 0 upwards, and get() while its backward is, in any order. get() fills `into` with what put() was given
  // under the same numbers, once: afterwards it is gone.
  virtual Status put(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<const std::byte> bytes) = 0;
  virtual Status get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) = 0;
};

}  // namespace penstock::trainer
