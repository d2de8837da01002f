// EngineVerbs are those of the engine's verbs that computing a step needs, over tensors' memory: whoever holds the
// weights implements them, EngineLink for the tiers, the plain loops and tests for plain memory.
//
// A unit's weights may be touched between acquire() and release() only; afterwards they may lie elsewhere, or nowhere.
// Gradients of a use and micro-batch come between its backward acquire() and release(). A trainable element that
// got none until release() gets none from this use and micro-batch. Those of a block stay as they are until release().
//
// Memory that is lent, given or filled here is the accelerator's, and its stream orders who touches it: what is lent
// may be touched by what comes on the stream after the call, and what is given is free again for that.
//
// Used by one thread at a time. After a refusal the step is given up: the caller ends with that refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/step_engine.h"
#include "runtime/trainer/accelerator.h"
#include "tiering/state_layout.h"
#include "tiering/status.h"

namespace penstock::trainer {

// Where activations wait for backward.
enum class Keeping : uint8_t { in_memory, with_engine };

using engine::ComputePass;
using engine::UnitWeights;

class EngineVerbs {
 public:
  virtual ~EngineVerbs() = default;

  // What the step is computed on.
  virtual Accelerator& accelerator() = 0;

  // The weights of the use's units, in the order in which the use names them. Valid until release().
  virtual Result<std::vector<UnitWeights>> acquire(const ComputePass& pass) = 0;
  virtual Status release(const ComputePass& pass) = 0;

  // Elements [first_element, ...) of the unit's gradient by this use and micro-batch: all of them, a parameter, or a
  // part of one; no element twice.
  virtual Status gradient(const ComputePass& pass, uint32_t unit, uint64_t first_element, Dtype dtype,
                          std::span<const std::byte> values) = 0;

  // What backward needs of forward, kept elsewhere: put() while forward of the use and micro-batch is acquired, with
  // `index` from 0 upwards, and get() while its backward is, in any order. get() fills `into` with what put() was given
  // under the same numbers, once: afterwards it is gone.
  virtual Status put(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<const std::byte> bytes) = 0;
  virtual Status get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) = 0;
};

}  // namespace penstock::trainer
