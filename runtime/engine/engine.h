// Engine drives the tiered state of a model through training steps. Every trainer uses the same few verbs:
//
//   begin(numbers)         what early updates must know.
//   acquire(use, mb)       forward or backward: the weights of a use's units, where they are computed with. Waits only
//                          if the plan was late.
//   release(use, mb)       the weights may leave.
//   put, get               activations that backward needs, where the plan keeps them.
//   gradient(...)          of a use and micro-batch, whole or in parts: added up, rounded once, and handed to the
//                          update when complete.
//   step()                 learns the norm, confirms or redoes speculative updates; returns before the last writes do.
//   discard()              after a failure of the trainer: as if begin() had not happened.
//   begin_forward()        forward passes that change nothing, up to end_forward().
//   read(), write()        parameters and their state, outside a step.
//
// engine.cpp opens, begins and ends steps; engine_pass.cpp has what a step consists of, engine_state.cpp what is
// between steps, engine_forward.cpp the passes that change nothing, engine_plan.cpp new plans,
// engine_create.cpp create().
//
// Updates run while later gradients still come. The result does not depend on when they run, on budgets, tile sizes,
// drives, threads or placement: not by a bit.
//
// Where the plan computes on a device, weights and gradients are in its memory, and a stream says when: acquire() makes
// the stream wait for what it gives, release() and gradient() are ordered behind what the trainer has put there. The
// host does not wait for the stream.
//
// Called from any thread, by one at a time; a call waits for the one before it. Behind it one decision thread owns
// store, drives and plan. A call at the wrong time, or with the wrong sizes, is refused and changes nothing. After a
// failure every verb returns that failure; the store holds the last committed step, and opening it again goes on from
// there.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aio/make_engine.h"
#include "aio/store/tile_store.h"
#include "runtime/engine/decision_thread.h"
#include "runtime/engine/device_memory.h"
#include "runtime/engine/device_sums.h"
#include "runtime/engine/gradient_intake.h"
#include "runtime/engine/moved.h"
#include "runtime/engine/plan_change.h"
#include "runtime/engine/root_state.h"
#include "tiering/hyper.h"
#include "tiering/plan/plan_run.h"
#include "tiering/plan/plan_search.h"
#include "tiering/plan/speculation.h"
#include "tiering/step_numbers.h"

namespace penstock::engine {

class RankSide;

// The drives of a run: one I/O engine and the store's folders. Made on the decision thread.
struct Drives {
  std::unique_ptr<IoEngine> io;
  std::vector<std::shared_ptr<aio::DriveFolder>> folders;
  std::string description;
};
using MakeDrives = std::function<Result<Drives>()>;

struct EngineOptions {
  PlanRequest request;          // what is trained, budgets, durability, rates, choices
  MakeDrives drives;            // direct_drives(), or a test's
  MakeDevice device = {};       // where the plan computes on one: with memory of its own
  uint64_t seed = 0;            // of stochastic rounding
  uint32_t update_threads = 0;  // 0: as many as there are processors
  std::string config_hash;      // a store written under another one is refused; one of the two empty: not compared
  std::string initial_state;    // of create(): what restored_state() is before the first step
  uint64_t initial_step = 0;    // of create(): that many steps count as done, none of them as a parameter's update
  // When the engine takes another plan by itself, in begin(): the drives' rates have changed, and it is faster. It is
  // looked for beside the next step, on a thread of its own. None: only by new_plan(). A trainer reads plan() and
  // passes() anew in each step, for micro-batch groups, and which activations are kept, may be others.
  std::optional<NewPlanRule> new_plan_rule = NewPlanRule{};
  // Told of every plan that takes the place of another, in one line: why, what it was and what it is. The caller's
  // thread, inside new_plan() or begin().
  std::function<void(const std::string& line)> on_new_plan = {};
  // Where opening must read a whole store because a root of it is in doubt. Decision thread.
  aio::ScrubProgress verifying;
  // Called when a root is durable: from now on a crash leaves this step or a later one. On the decision thread, so it
  // must return quickly.
  std::function<void(uint64_t step)> on_durable;
  // Told of a tile's new weights when its update has ended: those of the unit's elements from `first` on, in the form's
  // weight dtype, which stay where they are until it returns. On update threads, several at a time. Refused with
  // clipping, which may take updates back.
  std::function<void(uint32_t unit, uint64_t first, std::span<const std::byte> weights)> on_updated;
  // Where the request is of one rank's shards: the other ranks, and what makes their stores one. See ranks/.
  RankSide* ranks = nullptr;
  std::optional<StoreId> store_id = {};      // of create()
  std::optional<uint64_t> newest_step = {};  // of open(): at most this one
};

// The fp32 master of a unit's elements [first, first + values.size()): where training begins. A refusal is create()'s.
using InitialValues = std::function<Status(uint32_t unit, uint64_t first, std::span<float> values)>;

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
  double predicted_s = 0;
  uint64_t new_plans = 0;   // since open()
  uint64_t read_bytes = 0;  // by the drives since the report before
  uint64_t written_bytes = 0;
};

// Real files in these folders, one for each drive.
MakeDrives direct_drives(std::vector<std::string> paths, aio::EngineChoice choice = aio::EngineChoice::automatic);

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
  std::span<std::byte> bytes;
};

// One pass of the plan, in the order in which acquire() expects them.
struct ComputePass {
  Direction direction = Direction::forward;
  uint32_t use = 0;
  uint32_t micro_batch = 0;

  bool operator==(const ComputePass&) const = default;
};

class EngineCore;  // what lives on the decision thread

class Engine {
 public:
  // Makes the store and writes the initial state, in bounded memory.
  static Status create(const EngineOptions& options, const InitialValues& initial,
                       aio::CreateOptions::Existing existing = aio::CreateOptions::Existing::refuse);
  // Opens the store at its last committed step.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  // Waits for what is under way. A step that was begun and not ended is given up. What the trainer has put on its own
  // streams after the last release() or gradient(), or around one that was refused, must have ended: the device's
  // memory goes.
  ~Engine();

  uint64_t steps_done() const { return steps_done_; }
  // 32 digits that no other store has.
  const std::string& store_id() const { return store_id_; }
  // Of them, those that were not skipped.
  uint64_t updates_done() const { return state_.updates; }
  // With one slot a tile, a crash within a step loses the store.
  bool survives_crashes() const { return slots_ > 1; }
  // What the trainer gave with the step that the store was opened at; before the first, with create().
  const std::string& restored_state() const { return restored_; }
  // Of the next step, or of the one that has begun. Another may take its place between steps: see new_plan().
  const Plan& plan() const { return *plan_; }
  // What it was made for.
  const PlanRequest& request() const { return options_.request; }
  // 0 if the machine profile has no drive rates to predict from.
  double predicted_step_s() const { return predicted_s_; }
  // Budget lines, what was mended or taken on trust at opening, what I/O engine and what pages are really used: what a
  // user reads at start.
  std::string description() const;
  // The part of description() about repairs and unverified data.
  std::vector<std::string> remarks() const;

  Status begin(const StepBegin& begin);
  // The passes of the step that has begun, in the plan's order. Empty where only updates are planned.
  std::vector<ComputePass> passes() const;
  // In the order of passes(), one at a time. What is given stays in its place, and nobody writes it, until release().
  // `stream`: where a device computes the pass; nothing put there before release() is late.
  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass, Stream stream = {});
  Status release(const ComputePass& pass);
  // Between acquire() and release() of a forward pass: room for `bytes` that its backward pass needs, where it
  // computes, to be filled before release(). Begins at a multiple of 256 B. Refused where the plan has no room for it.
  Result<std::span<std::byte>> put(const ComputePass& pass, uint64_t bytes);
  // Between acquire() and release() of the backward pass: what the forward pass of the same use and micro-batch has put
  // there, by the order of its calls of put(); to read.
  Result<std::span<std::byte>> get(const ComputePass& pass, size_t number);
  // `values`: of `part`, element by element. Micro-batches of a use come in ascending order, the parts of one in any.
  // Elements outside of all parameters may be left out of parts and count as zero. On a device they are in its memory,
  // complete when `stream` comes to here, and read there: what is put on the stream from now on may overwrite them.
  // None: the stream of the pass.
  Status gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                  std::optional<Stream> stream = {});
  Status gradient(uint32_t unit, uint32_t micro_batch, Dtype dtype, std::span<const std::byte> values) {
    return gradient(GradientPart{.unit = unit, .micro_batch = micro_batch}, dtype, values);
  }
  // The unit has no gradient in this step at all, of no micro-batch.
  Status absent_gradient(uint32_t unit, Absent absent);
  // The same of one parameter of a unit whose gradient comes in parts. Where int8 moments share a scale with those of
  // a neighbour, `skip` is refused.
  Status absent_gradient(ParameterId parameter, Absent absent);
  // `trainer_state`: what the trainer needs to go on after this step, kept beside the tiles. At most the store's
  // trainer_bytes, 64 KiB by default.
  Result<StepReport> step(std::string trainer_state = {});
  Status discard();

  // Passes that change nothing, for evaluation and generation. acquire() and release() take forward passes of any use,
  // in any order and number, one at a time; between steps uses in turn come without waiting for the drives, as far as
  // the plan has room for two. `micro_batch` is not looked at: weights come once for all that is computed with them.
  // Within a step, where the plan was asked for room (forward_in_steps), with the weights that the step began with: as
  // long as no pass is acquired and no gradient of the step is complete. The step goes on after end_forward().
  Status begin_forward();
  Status end_forward();

  // Between steps: from now on the plan is the fastest for this request, of the same model, state and durability;
  // machine, budgets, choices, uses and micro-batches may be others. Not a bit of what is learnt depends on it. Every
  // step so far becomes durable first, and what rests in host memory comes from the store again, so a crash loses
  // nothing. Refused, with nothing changed, where the plan does not fit the memory that the run has: at most the host
  // budget that it was opened with, and on a device the arenas as they are; and of one rank of several.
  Status new_plan(const PlanRequest& request);

  // Waits until nothing of the steps so far is under way: their updates have ended, and those that are durable by then
  // are on the drives.
  Status finish();
  // Makes every step so far durable, whatever the durability, and waits for it.
  Status settle();
  // Between steps, after settle(): where in the files the last step lies. See KeptSteps.
  std::vector<aio::TileStore::FileRun> runs_of_durable_step() const;
  // By the drives since open(): after settle() with what followed the last step, which no report has.
  Moved moved() const;
  // Outside a step: how many updates the parameter has had. Its next update's coefficients are those of one more.
  Result<uint64_t> update_count(ParameterId parameter);
  // Sets it, as for state that another optimizer has left; durable as with write().
  Status write_update_count(ParameterId parameter, uint64_t count);
  // Outside a step. Values [first, ...) of a unit's plane, in its dtype: one an element, or one scale a block of 256.
  // Of a frozen unit that rests in codes, the weights that passes compute with, in the form's weight dtype. What was
  // written is durable when write() returns, together with every step so far, all of it or nothing. Many writes, and
  // update counts, become durable together between begin_writes() and end_writes(), where no step begins.
  Status begin_writes();
  Status end_writes();
  Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values);
  Status write(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values);

 private:
  explicit Engine(EngineOptions options);

  Status start();
  // Makes what follows from the plan that the decision thread has. Nothing is under way there.
  void take_up_plan();
  void watch_rates(const DrivesUnderLoad& since_open);
  Status take_found_plan();
  Status change_plan(const PlanRequest& request, ChosenPlan chosen, const std::string& why);
  Status begin_forward_in_step();
  enum class Now { between_steps, in_step, in_forward };
  // Where it is not so, an earlier failure is why, and the answer; or the caller's order of verbs is wrong.
  Status expect(Now now, const char* verb);
  Status expect_pass(const ComputePass& pass, const char* verb) const;
  Status expect_held(const ComputePass& pass, Direction direction, const char* verb) const;
  ComputePass pass_of(const Compute& compute) const;
  std::string words_of(const ComputePass& pass) const;
  Status expect_forward(const ComputePass& pass, const char* verb) const;
  // The pass that is held: where what the trainer has put on its stream will have read the weights.
  Result<Event> end_of_reading();
  Result<std::vector<UnitWeights>> acquire_in_forward(const ComputePass& pass, Stream stream);
  Status release_in_forward(const ComputePass& pass);
  UnitWeights weights_of(uint32_t unit, std::span<std::byte> bytes) const;
  Status check_run(const char* verb, uint32_t unit, Role role, uint64_t first, uint64_t length_bytes) const;
  Status check_groups(const std::vector<Hyper>& groups) const;
  Status check_parameter(const char* verb, ParameterId parameter) const;
  UnitNumbers numbers_of(const StepBegin& begin, uint32_t unit) const;
  bool is_untouched(uint32_t unit, const ParameterRun& run) const;
  void count_updates();
  std::vector<TileId> tiles_to_update(uint32_t unit);
  void skip_tiles(const std::vector<TileId>& tiles);
  Status refuse_shared_scales(const Unit& unit, uint32_t parameter) const;
  Status take_places(std::span<const TileId> tiles, std::deque<Lease>& places);
  template <typename Function>
  Status as_intake(Function work);
  // `fill` writes a tile's gradient into its place, and its sums of squares by block.
  using FillGradient = std::function<void(const Tile& tile, std::byte* place, std::span<double> squares)>;
  Status hand_over(uint32_t unit, const FillGradient& fill);
  Status expect_backward(const GradientPart& part) const;
  Status hand_over_completed();
  // Once `ready` holds, `then`; until then gradients are taken in as the device lowers them.
  template <typename Function>
  Status wait_taking_in(std::function<bool(EngineCore&)> ready, Function then);
  Status take_in(const LoweredSum& lowered);
  // Fails the step with what the device has refused.
  Status device_refused(const Status& status);
  Status commit_writes();
  Status discard_step();
  Status settle_steps();
  void skip_left_out_computes();
  template <typename Function>
  Status wait_for(std::function<bool(EngineCore&)> ready, Function then);
  // Once nothing of the steps so far is under way.
  template <typename Function>
  Status when_idle(Function then);

  EngineOptions options_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<EngineCore> core_;  // called by the decision thread only, once start() has returned
  std::unique_ptr<DecisionThread> thread_;
  std::unique_ptr<GradientIntake> intake_;  // of what the trainer gives
  // Where a device computes: what adds up there, and the intake of what it has lowered.
  std::unique_ptr<DeviceSums> device_sums_;
  std::unique_ptr<GradientIntake> lowered_intake_;
  SpeculationPolicy speculation_;
  std::string restored_, store_id_;
  double predicted_s_ = 0;
  uint64_t new_plans_ = 0, plans_found_ = 0;  // that took over; of them, those that nobody asked for
  std::optional<RateWatch> rate_watch_;
  DrivesUnderLoad drives_load_;                // of the executor, up to the last step
  std::future<PlanAtRates> looking_for_plan_;  // beside a step
  uint32_t slots_ = 0;                         // a tile, of the store
  StateCapacity state_capacity_;
  uint64_t steps_done_ = 0;
  Moved reported_;  // up to the last report

  std::mutex verbs_;  // held by the verb that runs; guards all below
  Now now_ = Now::between_steps;
  Now after_forward_ = Now::between_steps;  // what it is with end_forward()
  bool updates_ = false;                    // a gradient of the step is complete
  bool in_writes_ = false;
  bool has_written_ = false;  // since begin_writes()
  size_t next_compute_ = 0;   // of the plan's
  bool has_acquired_ = false;
  uint32_t held_use_ = 0;  // in forward passes
  Stream pass_stream_;     // of the pass that was acquired last
  std::span<std::byte> pass_activation_;
  // By use and micro-batch: what was put, in the place of that activation.
  struct Run {
    uint64_t offset_bytes = 0, bytes = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Run>> put_;
  std::vector<uint32_t>
      completed_;  // units whose gradient is complete, and goes to the update with the end of the pass
  StepBegin begin_;
  EngineState state_;  // after the last step
  // By unit: what stays untouched in the step that has begun.
  struct Skipped {
    bool whole = false;
    std::vector<bool> parameters;
  };
  std::vector<Skipped> skipped_;
  std::vector<std::vector<double>> squares_;  // by unit, of every block
  std::chrono::steady_clock::time_point began_, left_;
  StepReport report_;
};

}  // namespace penstock::engine
