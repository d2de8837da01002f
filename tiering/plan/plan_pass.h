// PassMoves adds a training step's forward and backward passes to its plan, and hands each unit's gradient to the
// update. For this folder alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tiering/plan/plan.h"
#include "tiering/plan/plan_builder.h"
#include "tiering/plan/plan_update.h"
#include "tiering/unit.h"

namespace penstock {

class PassMoves {
 public:
  // All that is named outlives it.
  PassMoves(const Workload& workload, const PlanSizes& sizes, bool has_device, Plan& plan, UpdateMoves& update);

  void add_all();
  // forward(u) of the next step waits for update(u), wherever the weight rests. REQUIRES: the update is finished.
  void tie_forward_to_updates();

 private:
  // What took memory for a unit's weights or for an activation, and the move after which it may be used.
  struct Held {
    MoveId host = kNoMove, device = kNoMove, ready = kNoMove;
  };

  // Of the micro-batches [first, end).
  void forward(uint32_t first, uint32_t end);
  void backward(uint32_t first, uint32_t end);
  // Of one unit and micro-batch, which comes after the one before: so the last of a unit's uses ends all of them.
  MoveId forward_use(uint32_t u, uint32_t mb, const Held& held, MoveId before);
  MoveId backward_use(uint32_t u, uint32_t mb, const Held& held, MoveId before);

  // Brings a unit's weights to where it is computed.
  Held fetch(uint32_t unit, bool first_of_step);
  // The units whose weights a unit is computed with.
  std::vector<uint32_t> parts_of(uint32_t unit) const;
  uint64_t activation_bytes(const Unit& unit) const;
  // One group's gradient of a unit, on its way to where it is added up; returns the move after which it is there.
  MoveId hand_over(uint32_t u, MoveId use);
  // The gradient of a unit after its last use, and the updates of its tiles. Adds what must end before the copy of the
  // weights goes to `until`.
  void complete(uint32_t u, const Held& held, std::vector<MoveId>& until);

  const Workload& workload_;
  const PlanSizes& sizes_;
  const bool has_device_;
  Plan& plan_;
  UpdateMoves& update_;
  std::vector<std::vector<Held>> activations_;    // by unit and micro-batch
  std::vector<MoveId> last_use_;                  // by micro-batch: of the pass so far
  std::vector<std::vector<MoveId>> handed_over_;  // by unit: its groups' gradients
  std::vector<std::pair<uint32_t, MoveId>> first_uses_;
};

}  // namespace penstock
