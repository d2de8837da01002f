// EngineCore is what lives on the decision thread: drives, store, memory, workers and the executor, opened in that
// order and ended in the other. Engine's verbs reach it through messages. engine_core_state.cpp has what it does with
// the state between steps.
#pragma once

#include "runtime/engine/engine.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/forward_weights.h"
#include "runtime/engine/plan_change.h"
#include "runtime/engine/store_sweep.h"

namespace penstock::engine {

class EngineCore {
 public:
  // Opens the store and plans for the tiles it has.
  static Result<std::unique_ptr<EngineCore>> open(const EngineOptions& options, Mailbox& mailbox);

  // Waits for events and acts on them, for at most `timeout`; then does what between_turns() was given.
  void turn(std::chrono::milliseconds timeout);
  // What replaces the executor must not run inside one of its calls.
  void between_turns(std::function<void()> work) { between_turns_ = std::move(work); }

  const Plan& plan() const { return *plan_; }
  aio::TileStore& store() { return *store_; }
  Executor& executor() { return *executor_; }
  HostMemory& memory() { return *memory_; }
  DeviceMemory* device() { return device_.get(); }  // none: it computes in place
  cpu_optim::UpdateWorkers& workers() { return *workers_; }
  // 0 if the machine profile has no drive rates to predict from.
  double predicted_step_s() const { return predicted_step_s_; }
  std::string description() const;
  // Since open().
  DriveBytes drive_bytes() const {
    return executor_->drive_bytes() + outside_steps_ + (forward_ ? forward_->drive_bytes() : DriveBytes());
  }
  LaneSeconds busy_s() const;

  // Weights for passes that change nothing; see there what the executor may do until end_forward().
  void begin_forward(ForwardWeights::Room room);
  ForwardWeights& forward() { return *forward_; }
  void end_forward();

  // Between steps, nothing under way. All of them block this thread until they are done.

  // What rests in memory, the host's or the device's, from the store: all of it, or only the weights in host memory of
  // tiles whose state rests on drives.
  enum class Resting { all, weights_without_state };
  Status load_resting(Resting which);
  // Makes what rests in memory durable, with everything else.
  Status commit_resting(RootPayload payload);
  // One plane's elements; of a unit that rests in codes, its weights as they are computed with.
  Status read_plane(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values);
  // Durable with the next commit().
  Status write_plane(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values);
  // Makes the payload durable with the tiles as they are.
  Status commit(RootPayload payload);

  // What a plan that takes the place of this one may have of memory.
  ArenaRoom arena_room() const;
  // Another plan for the same tiles takes over: memory is laid out anew, and what rests there comes from the store. A
  // refusal with Code::kDoesNotFit leaves the plan as it was; after any other the executor has failed. From
  // between_turns(). REQUIRES: the store has the last step, and the plan fits arena_room().
  Status change_plan(ChosenPlan chosen);

 private:
  EngineCore(const EngineOptions& options, Mailbox& mailbox) : options_(options), mailbox_(mailbox) {}
  Status read_dequantised(uint32_t unit, uint64_t first, std::span<std::byte> values);
  Status open_store();
  Status make_plan();
  Status make_scratch_files(const Plan& plan);
  void make_executor();

  // The part of one tile that a run of a plane covers.
  struct PlaneRun {
    TileId tile;
    aio::TileStore::Range plane;  // the whole of it
    uint64_t tile_offset_bytes, values_offset_bytes, length_bytes;
    bool rests_in_memory;
  };
  Result<std::vector<PlaneRun>> runs_of(const char* verb, uint32_t unit, Role role, uint64_t first,
                                        uint64_t length_bytes) const;
  Status sweep(std::span<const StoreSweep::Visit> visits, StoreSweep::Then then, const StoreSweep::OnTile& on_tile);
  // Between a whole tile's bytes and what of it rests in memory.
  Status scatter_resting(TileId tile, std::byte* bytes);
  Status gather_resting(TileId tile, std::byte* bytes) const;
  std::span<std::byte> whole(TileId tile, std::byte* bytes) const { return {bytes, plan_->tiles[tile].slot_bytes()}; }

  const EngineOptions& options_;
  Mailbox& mailbox_;
  Drives drives_;
  std::unique_ptr<aio::TileStore> store_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<SpillFiles> spill_;
  std::unique_ptr<ActivationFiles> activations_;
  std::unique_ptr<cpu_optim::UpdateWorkers> workers_;
  std::unique_ptr<Executor> executor_;
  std::optional<ForwardWeights> forward_;
  std::function<void()> between_turns_;
  int io_descriptor_ = -1;
  double predicted_step_s_ = 0;
  DriveBytes outside_steps_;   // outside of steps
  LaneSeconds busy_before_{};  // by the plans before this one
};

}  // namespace penstock::engine
