// PassMoves adds a training step's forward and backward passes to its plan, and hands each unit's gradient to the
// update. For this folder alone.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/plan/area_cutter.h"
#include "tiering/plan/device_units.h"
#include "tiering/plan/plan.h"
#include "tiering/plan/plan_builder.h"
#include "tiering/plan/plan_update.h"
#include "tiering/unit.h"

namespace penstock {

class PassMoves {
 public:
  // All that is named outlives it.
  PassMoves(const Workload& workload, const PlanSizes& sizes, Plan& plan, UpdateMoves& update);

  void add_all();
  // A unit's weights are current when its update has landed where the weights rest, and when a skipped step has brought
  // back what it had changed. REQUIRES: the update is finished.
  void tie_to_step_before();

 private:
  // What took memory for a unit's weights, and the move after which they may be used.
  struct Held {
    MoveId host = kNoMove, device = kNoMove, ready = kNoMove;
  };
  // Of an activation: its places where it is computed, in host memory and on the drives.
  struct Kept {
    MoveId made = kNoMove, offloaded = kNoMove, spilled = kNoMove;
  };

  // Of the micro-batches [first, end). The last use's weights stay from its forward to its backward, which follows at
  // once.
  void forward(uint32_t first, uint32_t end);
  void backward(uint32_t first, uint32_t end);
  bool turns_at(uint32_t use) const { return use + 1 == workload_.uses.size() && use >= first_trained_use_; }
  void forward_use(uint32_t use, uint32_t micro_batch, const std::vector<Held>& weights);
  // `begins_sum`: of the gradients that a device adds up before they are downloaded.
  void backward_use(uint32_t use, uint32_t micro_batch, const std::vector<Held>& weights, bool begins_sum);

  // Brings the weights of a use's units to where they are used, for micro-batches up to `last`.
  std::vector<Held> fetch(uint32_t use, uint32_t last);
  Held fetch_unit(uint32_t unit, uint32_t use, uint32_t last);
  void add_compute(Direction direction, Move move, const std::vector<Held>& weights);
  uint64_t activation_bytes(uint32_t use) const;
  // Where a use's activations of one micro-batch are kept, of those that are kept as it does.
  uint64_t activation_place(uint32_t use, uint32_t micro_batch) const {
    return activation_offset_bytes_[use] + micro_batch % sizes_.micro_batch_group * activation_bytes(use);
  }
  // After the forward that made it: it leaves, to where the plan keeps it.
  void offload(uint32_t use, uint32_t micro_batch);
  // The move after which it is back.
  MoveId bring_back(uint32_t use, uint32_t micro_batch);
  // To where they are computed with, from the codes that move `ready` has brought, or that rest in host memory.
  void dequantise(uint32_t unit, Move move, uint64_t bytes, Held& held);
  bool rests_on_nvme(uint32_t unit) const;
  uint32_t ranks() const { return workload_.ranks > 1 ? workload_.ranks : 1; }
  // Takes what other ranks have of it.
  MoveId gather(const Move& like);
  // Whether what is handed over completes the unit's gradient.
  bool completes(uint32_t unit, uint32_t use, uint32_t micro_batch) const {
    return micro_batch + 1 == workload_.micro_batches && uses_of(workload_, unit).front() == use;
  }
  bool recomputed(uint32_t use) const { return recomputes(sizes_.activations[use]); }
  // Lays out where a device adds up the gradients of a use's units, from `at` on; the end of it.
  uint64_t lay_out_sums(uint32_t use, uint64_t at, std::vector<Compute::Sum>& sums) const;
  // Of a unit, after the compute move that made it: its gradient, or that of one micro-batch, goes to the host.
  void hand_over(uint32_t unit, uint32_t use, uint32_t micro_batch);
  // The unit's gradient after its last use, and the updates of its tiles. Adds to `until` what must end before the
  // copy of the weights goes.
  void complete(uint32_t unit, const Held& held, std::vector<MoveId>& until);
  // What complete() left for the end, in the order in which the next forward needs it.
  void complete_others();
  bool waits_for_verdict(TileId tile) const;
  void give_back(AreaCutter& area, MoveId taker, std::vector<MoveId> after);

  const Workload& workload_;
  const PlanSizes& sizes_;
  const bool has_device_;
  const uint32_t first_trained_use_;
  Plan& plan_;
  UpdateMoves& update_;
  AreaCutter host_units_;
  DeviceUnits device_units_;
  AreaCutter device_gradients_, downloaded_, keeping_, moving_, offloaded_, passing_, spilled_;
  // Of each use that has activations: where its first micro-batch's are kept, here, in host memory or on the drives.
  std::vector<uint64_t> activation_offset_bytes_;
  std::vector<std::vector<Kept>> kept_;           // activations, by use and micro-batch
  MoveId last_compute_ = kNoMove;                 // computes follow one another
  MoveId adds_up_ = kNoMove;                      // the backward that took the place of gradients now added up
  std::vector<MoveId> downloads_now_;             // out of that place
  std::vector<std::vector<MoveId>> handed_over_;  // by unit
  std::vector<MoveId> current_;                   // by unit: its weights_current
  // Tiles that are updated behind all others, and by unit what ends before their gradients are complete.
  const std::vector<bool> deferred_;
  std::vector<std::vector<MoveId>> completed_by_;
  std::vector<Held> turning_;  // of the use whose backward follows its forward
  // Where ranks keep what they have gathered: by unit, whether it was, in this step.
  std::vector<bool> is_gathered_;
  // Where they do not: the last compute before each of the last two fetches, since there is room for two uses.
  MoveId computed_before_fetch_ = kNoMove, computed_before_last_fetch_ = kNoMove;
};

}  // namespace penstock
