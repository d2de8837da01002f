// StepEngine is what trainers drive: the tiered state of a model, through training steps. Every trainer uses the same
// few verbs, whether one engine has all of the state (Engine) or each of several ranks a part of it (RankedEngine):
//
//   begin(numbers)         what early updates must know.
//   acquire(pass)          forward or backward: the weights of a use's units, where they are computed with. Waits only
//                          if the plan was late.
//   release(pass)          the weights may leave.
//   put, get               activations that backward needs, where the plan keeps them.
//   gradient(...)          of a use and micro-batch, whole or in parts: added up, rounded once, and handed to the
//                          update when complete.
//   step()                 learns the norm, confirms or redoes speculative updates; returns before the last writes do.
//   discard()              after a failure of the trainer: as if begin() had not happened.
//   begin_forward()        forward passes that change nothing, up to end_forward().
//   read()                 parameters and their state, outside a step.
//
// Called from any thread, by one at a time; a call waits for the one before it. A call at the wrong time, or with the
// wrong sizes, is refused and changes nothing. After any other failure every verb returns that failure, which says
// which step is committed: opening the store again goes on from there.
//
// Where the plan computes on a device, weights and gradients are in its memory, and a stream says when: acquire() makes
// the stream wait for what it gives, release() and gradient() are ordered behind what the trainer has put there. The
// host does not wait for the stream.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "runtime/engine/drive_bytes.h"
#include "tiering/device.h"
#include "tiering/hyper.h"
#include "tiering/plan/plan.h"
#include "tiering/plan/step_speculation.h"

namespace penstock::engine {

// What a step needs before its gradients come.
struct StepBegin {
  std::vector<Hyper> groups;  // of hyper-parameters, by number; units and their parameters name theirs
  uint32_t micro_batches = 1;
  double loss_scale = 1;
};

struct StepReport {
  uint64_t step = 0;  // counts from 1
  Verdict verdict = Verdict::confirm;
  double gradient_norm = 0;  // without loss scale, before clipping
  double clip_factor = 1;
  double wall_s = 0;                     // since begin() was called
  double trainer_s = 0;                  // of it, spent outside the engine
  double intake_s = 0;                   // adding up, rounding and measuring gradients
  std::array<double, kLanes> stall_s{};  // waiting, per lane; trainer_s, intake_s and all of these add up to wall_s
  // With a move of the lane under way, since the report before. What a stream carries is from when it is put there.
  std::array<double, kLanes> busy_s{};
  double predicted_s = 0;
  uint64_t new_plans = 0;   // since open()
  uint64_t read_bytes = 0;  // by the drives since the report before
  uint64_t written_bytes = 0;
  uint64_t gathered_bytes = 0, reduced_bytes = 0;  // weights and gradients that came from other ranks, since then too
};

// What becomes of what has no gradient in a step. skip: it is left untouched, and the step is not counted among its
// updates, which is what PyTorch does. zero: it is updated with zeros.
enum class Absent { skip, zero };

// A parameter, by its number in its unit.
struct ParameterId {
  uint32_t unit = 0;
  uint32_t parameter = 0;
};

// Of which use's pass the values are, and where in the unit they begin.
struct GradientPart {
  uint32_t unit = 0;
  uint32_t micro_batch = 0;
  std::optional<uint32_t> use = {};  // none: the only one that the unit has
  uint64_t first_element = 0;
};

// A unit's weights, element by element from the unit's first; in the device's memory where the plan computes there.
struct UnitWeights {
  uint32_t unit = 0;
  uint64_t elements = 0;
  std::span<const std::byte> bytes;  // begin at a multiple of 64 B: kernels that choose by alignment choose alike
};

// One pass of the plan, in the order in which acquire() expects them.
struct ComputePass {
  Direction direction = Direction::forward;
  uint32_t use = 0;
  uint32_t micro_batch = 0;

  bool operator==(const ComputePass&) const = default;
};

class StepEngine {
 public:
  // A step that was begun and not ended is given up.
  virtual ~StepEngine() = default;

  virtual uint64_t steps_done() const = 0;
  // Of the steps done, those that were not skipped.
  virtual uint64_t updates_done() const = 0;
  // What the trainer gave with the step that the store was opened at; before the first, with create().
  virtual const std::string& restored_state() const = 0;
  // 32 digits that no other store has.
  virtual const std::string& store_id() const = 0;
  // Of the next step, or of the one that has begun; of a rank, that of its shards.
  virtual const Plan& plan() const = 0;
  // The plan with all that takes time: of one rank of several, with what ranks move among one another.
  virtual Plan forecast() const { return plan(); }
  // Of the forecast. 0 if the machine profile has no drive rates to predict from.
  virtual double predicted_step_s() const = 0;
  // Budget lines, what was mended or taken on trust at opening, what I/O engine and what pages are really used: what a
  // user reads at start.
  virtual std::string description() const = 0;
  // The part of description() about repairs and unverified data.
  virtual std::vector<std::string> remarks() const = 0;
  // By its drives since it was opened: after settle() with what followed the last step, which no report has.
  virtual DriveBytes drive_bytes() const = 0;

  virtual Status begin(const StepBegin& begin) = 0;
  // The passes of the step that has begun, in the plan's order. Empty where only updates are planned.
  virtual std::vector<ComputePass> passes() const = 0;
  // In the order of passes(), one at a time. What is given stays in its place, and nobody writes it, until release().
  // `stream`: where a device computes the pass; nothing put there before release() is late.
  virtual Result<std::vector<UnitWeights>> acquire(const ComputePass& pass, Stream stream = {}) = 0;
  virtual Status release(const ComputePass& pass) = 0;
  // Between acquire() and release() of a forward pass: room for `bytes` that its backward pass needs, where it
  // computes, to be filled before release(). Begins at a multiple of 256 B. Refused where the plan has no room for it.
  virtual Result<std::span<std::byte>> put(const ComputePass& pass, uint64_t bytes) = 0;
  // Between acquire() and release() of the backward pass: what the forward pass of the same use and micro-batch has put
  // there, by the order of its calls of put(); to read.
  virtual Result<std::span<std::byte>> get(const ComputePass& pass, size_t number) = 0;
  // `values`: of `part`, element by element. Micro-batches of a use come in ascending order, the parts of one in any.
  // Elements outside of all parameters may be left out of parts and count as zero. On a device they are in its memory,
  // complete when `stream` comes to here, and read there: what is put on the stream from now on may overwrite them.
  // None: the stream of the pass. In host memory they are read before it returns; where the use says that gradients
  // stay, until release() returns.
  virtual Status gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                          std::optional<Stream> stream = {}) = 0;
  // The unit has no gradient in this step at all, of no micro-batch. Of several ranks: on this one; it is absent where
  // all of them say so.
  virtual Status absent_gradient(uint32_t unit, Absent absent) = 0;
  // The same of one parameter of a unit whose gradient comes in parts. Where int8 moments share a scale with those of
  // a neighbour, `skip` is refused.
  virtual Status absent_gradient(ParameterId parameter, Absent absent) = 0;
  // Of the step's gradients, without loss scale, once all have been handed over; for a trainer that discards the step
  // because of it. step() waits for the same, so asking before it takes no time.
  virtual Result<double> gradient_norm() = 0;
  // `trainer_state`: what the trainer needs to go on after this step, kept beside the tiles. At most the store's
  // trainer_bytes, 64 KiB by default.
  virtual Result<StepReport> step(std::string trainer_state = {}) = 0;
  // As if begin() had not happened. Where updates may have overwritten what was before them (without clipping, and with
  // one slot a tile or without a root after every step), it ends the engine instead: open the store again.
  virtual Status discard() = 0;
  // The trainer cannot end the step that it has begun: alone, it is discarded; of several ranks, all end. What to
  // answer.
  virtual Status give_up(const Status& why) = 0;

  // Passes that change nothing, for evaluation and generation. acquire() and release() take forward passes of any use,
  // in any order and number, one at a time; between steps uses in turn come without waiting for the drives, as far as
  // the plan has room for two. `micro_batch` is not looked at: weights come once for all that is computed with them.
  // Within a step, where the plan was asked for room (forward_in_steps), with the weights that the step began with: as
  // long as no pass is acquired and no gradient of the step is complete. The step goes on after end_forward().
  virtual Status begin_forward() = 0;
  virtual Status end_forward() = 0;

  // Waits until nothing of the steps so far is under way: their updates have ended, and those that are durable by then
  // are on the drives.
  virtual Status finish() = 0;
  // Makes every step so far durable, whatever the durability, and waits for it.
  virtual Status settle() = 0;
  // Between steps, after settle(): where in the files the last step lies; of a rank, in its own store's. See KeptSteps.
  virtual std::vector<aio::TileStore::FileRun> runs_of_durable_step() const = 0;
  // Outside a step. Values [first, ...) of a unit's plane, in its dtype: one an element, or one scale a block of 256.
  // Of a frozen unit that rests in codes, the weights that passes compute with, in the form's weight dtype. Of several
  // ranks, every one gets what any of them keeps; all of them together.
  virtual Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) = 0;
  // `all` gets every rank's numbers, in the order of ranks. All ranks together.
  virtual Status exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) = 0;
};

}  // namespace penstock::engine
