// Engine is the StepEngine of one process: it drives a model's tiered state over its drives, its memory and, where
// there is one, its device. RankedEngine has one for the shards of its rank.
//
// Behind the verbs one decision thread owns store, drives and plan (EngineCore). Updates run while later gradients
// still come. The result does not depend on when they run, on budgets, tile sizes, drives, threads or placement: not by
// a bit.
//
// engine.cpp opens, begins and ends steps; within a step, engine_pass.cpp has the passes, engine_gradients.cpp the
// gradients, engine_parts.cpp those that pass by piece after piece, and engine_absences.cpp those that are absent;
// engine_state.cpp has what is between steps, engine_forward.cpp the passes that change nothing, engine_plan.cpp new
// plans, engine_create.cpp create().
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

#include "aio/store/tile_store.h"
#include "runtime/engine/decision_thread.h"
#include "runtime/engine/device_memory.h"
#include "runtime/engine/device_sums.h"
#include "runtime/engine/drives.h"
#include "runtime/engine/gradient_intake.h"
#include "runtime/engine/initial_tiles.h"
#include "runtime/engine/plan_change.h"
#include "runtime/engine/root_state.h"
#include "runtime/engine/step_engine.h"
#include "runtime/engine/step_prediction.h"
#include "tiering/hyper.h"
#include "tiering/plan/plan_run.h"
#include "tiering/plan/plan_search.h"
#include "tiering/plan/speculation.h"
#include "tiering/step_numbers.h"

namespace penstock::engine {

class RankSide;

struct EngineOptions {
  PlanRequest request;          // what is trained, budgets, durability, rates, choices
  MakeDrives drives;            // direct_drives(), or a test's
  MakeDevice device = {};       // where the plan computes on one: with memory of its own
  uint64_t seed = 0;            // of stochastic rounding
  uint32_t update_threads = 0;  // 0: as many as there are processors
  // What the steps depend on, as parts with ", " between them; or a hash of it. A store that was written with another
  // one is refused, with the parts that differ. Where one of the two is empty they are not compared.
  std::string config_hash;
  std::string initial_state;  // of create(): what restored_state() is before the first step
  uint64_t initial_step = 0;  // of create(): that many steps count as done, none of them as a parameter's update
  // When the engine takes another plan by itself, in begin(): the drives' rates have changed, and it is faster. It is
  // looked for beside the next step, on a thread of its own. None: only by new_plan(). A trainer reads plan() and
  // passes() anew in each step, for micro-batch groups, and which activations are kept, may be others.
  std::optional<NewPlanRule> new_plan_rule = NewPlanRule{};
  // Told of every plan that takes the place of another, in one line: why, what it was and what it is; or why none is
  // looked for any more. The caller's thread, inside new_plan(), begin() or step().
  std::function<void(const std::string& line)> on_new_plan = {};
  // Where opening must read a whole store because a root of it is in doubt. Decision thread.
  aio::ScrubProgress verifying;
  // Called when a root is durable: from now on a crash leaves this step or a later one. On the decision thread, so it
  // must return quickly.
  std::function<void(uint64_t step)> on_durable;
  // Told of a tile's new weights when its update has ended: those of the unit's elements from `first` on, in the form's
  // weight dtype, which stay where they are until it returns. On update threads, several at a time. Refused with
  // clipping, which may take updates back, and with a device_share above 0; where that is open it is 0.
  std::function<void(uint32_t unit, uint64_t first, std::span<const std::byte> weights)> on_updated;
  // Where the request is of one rank's shards: the other ranks, and what makes their stores one. See ranks/.
  RankSide* ranks = nullptr;
  bool has_other_ranks() const { return ranks != nullptr; }
  std::optional<StoreId> store_id = {};      // of create()
  std::optional<uint64_t> newest_step = {};  // of open(): at most this one
};

class EngineCore;  // what lives on the decision thread

class Engine final : public StepEngine {
 public:
  // Makes the store and writes the initial state, in bounded memory.
  static Status create(const EngineOptions& options, const InitialValues& initial,
                       aio::CreateOptions::Existing existing = aio::CreateOptions::Existing::refuse);
  // Opens the store at its last committed step.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  // Waits for what is under way. What the trainer has put on its own streams after the last release() or gradient(), or
  // around one that was refused, must have ended: the device's memory goes.
  ~Engine() override;

  uint64_t steps_done() const override { return steps_done_; }
  uint64_t updates_done() const override { return state_.updates; }
  const std::string& restored_state() const override { return restored_; }
  // It becomes what the last step was given, as if the store had been opened at it. REQUIRES: settle() went well.
  void restore_state();
  const std::string& store_id() const override { return store_id_; }
  // EngineState::course, as it is now.
  uint64_t course() const { return state_.course; }
  // Another may take its place between steps: see new_plan().
  const Plan& plan() const override { return *plan_; }
  double predicted_step_s() const override { return prediction_.step_s(); }
  // Whether the step, or the last one, updates ahead of its verdict.
  bool speculates() const { return speculates_; }
  std::string description() const override;
  std::vector<std::string> remarks() const override;
  DriveBytes drive_bytes() const override;
  // With one slot a tile, a crash within a step loses the store.
  bool survives_crashes() const { return slots_ > 1; }
  // What the plan was made for.
  const PlanRequest& request() const { return options_.request; }

  Status begin(const StepBegin& begin) override;
  std::vector<ComputePass> passes() const override;
  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass, Stream stream = {}) override;
  Status release(const ComputePass& pass) override;
  Result<std::span<std::byte>> put(const ComputePass& pass, uint64_t bytes) override;
  Result<std::span<std::byte>> get(const ComputePass& pass, size_t number) override;
  // Of a unit whose gradient the plan does not add up (one micro-batch, no gradient_in_parts, update_only) parts come
  // in order, and go to the update as they come: until it has all of them, no other gradient comes.
  Status gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                  std::optional<Stream> stream = {}) override;
  Status gradient(uint32_t unit, uint32_t micro_batch, Dtype dtype, std::span<const std::byte> values) {
    return gradient(GradientPart{.unit = unit, .micro_batch = micro_batch}, dtype, values);
  }
  Status absent_gradient(uint32_t unit, Absent absent) override;
  Status absent_gradient(ParameterId parameter, Absent absent) override;
  Result<double> gradient_norm() override;
  Result<StepReport> step(std::string trainer_state = {}) override;
  Status discard() override;
  Status give_up(const Status& why) override;
  Status begin_forward() override;
  Status end_forward() override;

  // Between steps: from now on the plan is the fastest for this request, of the same model, state and durability;
  // machine, budgets, choices, uses and micro-batches may be others. Not a bit of what is learnt depends on it. Every
  // step so far becomes durable first, and what rests in host memory comes from the store again, so a crash loses
  // nothing. Refused, with nothing changed, where the plan does not fit the memory that the run has: at most the host
  // budget that it was opened with, and on a device the arenas as they are; and of one rank of several.
  Status new_plan(const PlanRequest& request);

  Status finish() override;
  Status settle() override;
  std::vector<aio::TileStore::FileRun> runs_of_durable_step() const override;
  // Outside a step: how many updates the parameter has had. Its next update's coefficients are those of one more.
  Result<uint64_t> update_count(ParameterId parameter);
  // Sets it, as for state that another optimizer has left; durable as with write().
  Status write_update_count(ParameterId parameter, uint64_t count);
  Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) override;
  // Outside a step, the values that read() reads. What was written is durable when write() returns, together with every
  // step so far, all of it or nothing. Many writes, and update counts, become durable together between begin_writes()
  // and end_writes(), where no step begins.
  Status write(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values);
  Status begin_writes();
  Status end_writes();
  Status exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) override;

  // Of one rank of several, within a step. Tells `then`, on the decision thread, when the weights of a pass that is
  // still to come are where they stay until it is released; or the failure, as when the step is given up before.
  using ThenWeights = std::function<void(const Status& status, std::vector<UnitWeights> weights)>;
  void when_weights(const ComputePass& pass, ThenWeights then);
  // Once the unit's last pass is released: its gradient over all ranks is there for RankSide::take_gradient().
  // `absent`: by parameter, and then the unit as a whole: what no rank has a gradient of, which is left untouched.
  Status gradient_of_all(uint32_t unit, const std::vector<bool>& absent);

 private:
  explicit Engine(EngineOptions options);

  Status start();
  // Makes what follows from the plan that the decision thread has. Nothing is under way there.
  void take_up_plan();
  // Of a step of the present plan that ends so.
  double predicted_s(Verdict verdict, bool speculated);
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
  Status measure_gradients(const char* verb);
  std::vector<TileId> tiles_to_update(uint32_t unit);
  void skip_tiles(const std::vector<TileId>& tiles);
  void skip_all_tiles(uint32_t unit);
  Status refuse_shared_scales(const Unit& unit, uint32_t parameter) const;
  Status take_places(std::span<const TileId> tiles, std::deque<Lease>& places);
  template <typename Function>
  Status as_intake(Function work);
  // Writes the gradient of some tiles of a unit to their places.
  using FillGradients = std::function<void(std::span<const GradientIntake::Target> tiles)>;
  Status hand_over(uint32_t unit, const FillGradients& fill);
  std::span<double> squares_of(const Tile& tile);
  void complete_tile(TileId tile, Lease gradient);
  Status pass_by(const GradientPart& part, const GradientIntake::Values& values);
  Status expect_no_arriving(const char* verb, uint32_t unit) const;
  void give_up_arriving();
  Status expect_backward(const GradientPart& part) const;
  Status hand_over_completed();
  // Once `ready` holds, `then`; until then gradients are taken in as they are downloaded from the device.
  template <typename Function>
  Status wait_taking_in(std::function<bool(EngineCore&)> ready, Function then);
  Status take_in(const DownloadedSum& downloaded);
  Status take_in_squares(const DownloadedSum& downloaded, uint32_t unit);
  // Fails the step with what the device has refused.
  Status device_refused(const Status& status);
  Status commit_writes();
  void note_write(const std::array<uint64_t, 3>& what, std::span<const std::byte> values);
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
  // Where a device computes: what adds up there, and the intake of what is downloaded from it.
  std::unique_ptr<DeviceSums> device_sums_;
  std::unique_ptr<GradientIntake> downloaded_intake_;
  SpeculationPolicy speculation_;
  std::string restored_, store_id_;
  StepPrediction prediction_;
  bool speculates_ = false;
  uint64_t new_plans_ = 0, plans_found_ = 0;  // that took over; of them, those that nobody asked for
  std::optional<RateWatch> rate_watch_;
  DrivesUnderLoad drives_load_;                // of the executor, up to the last step
  std::future<PlanAtRates> looking_for_plan_;  // beside a step
  uint32_t slots_ = 0;                         // a tile, of the store
  StateCapacity state_capacity_;
  uint64_t steps_done_ = 0;
  DriveBytes reported_;                           // up to the last report
  std::array<double, kLanes> reported_busy_s_{};  // up to it too

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
  std::map<std::pair<uint32_t, uint32_t>, std::vector<MemoryRun>> put_;
  // Units whose gradient is complete, and goes to the update with the end of the pass.
  std::vector<uint32_t> completed_;
  // The unit whose gradient passes by: its tiles from `next` on, the first of which has the place that is being filled.
  struct Arriving {
    Arriving(uint32_t of, std::vector<TileId> all) : unit(of), tiles(std::move(all)) {}

    uint32_t unit;
    std::vector<TileId> tiles;
    size_t next = 0;
    std::deque<Lease> place;
  };
  std::optional<Arriving> arriving_;
  StepBegin begin_;
  EngineState state_;  // after the last step
  // By unit: what stays untouched in the step that has begun.
  struct Skipped {
    bool whole = false;
    std::vector<bool> parameters;
  };
  std::vector<Skipped> skipped_;
  std::vector<std::vector<double>> squares_;  // by unit, of every block
  std::optional<double> squares_of_all_;      // of all ranks, once the step's gradients are complete
  std::chrono::steady_clock::time_point began_, left_;
  StepReport report_;
};

}  // namespace penstock::engine
