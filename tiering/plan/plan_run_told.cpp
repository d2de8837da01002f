// What a PlanRun is told from outside: gradients, the end of speculation, the verdict.
#include "tiering/plan/plan_run.h"

namespace penstock {
namespace {

size_t index(Pool pool) { return static_cast<size_t>(pool); }

}  // namespace

std::optional<TileId> PlanRun::next_gradient(uint64_t number) const {
  const Step* step = find(number);
  if (step == nullptr || step->gradients_due.empty()) return std::nullopt;
  return plan_.moves[step->gradients_due.first()].tile;
}

bool PlanRun::gradient_is_due(uint64_t number, TileId tile) const {
  const Step* step = find(number);
  return step != nullptr && step->gradients_due.contains(plan_.of_tile[tile].gradient);
}

bool PlanRun::try_take_gradient(uint64_t number, TileId tile) {
  Step& step = require(number);
  CHECK(!step.tiles[tile].gradient_taken, "the gradient of tile ", tile, " comes twice");
  const Pool pool = plan_.moves[plan_.of_tile[tile].gradient].takes;  // none where it has a place of its own
  if (pool != Pool::none) {
    if (pool_free_[index(pool)] == 0) return false;
    --pool_free_[index(pool)];
  }
  step.tiles[tile].gradient_taken = true;
  step.gradients_due.erase(plan_.of_tile[tile].gradient);
  press(step, tile);
  return true;
}

void PlanRun::gradient_complete(uint64_t number, TileId tile) {
  Step& step = require(number);
  CHECK(step.tiles[tile].gradient_taken, "the gradient of tile ", tile, " has no place");
  step.tiles[tile].gradient_held = true;
  --step.gradients_missing;
  finish(step, plan_.of_tile[tile].gradient, State::ended);
  close_finished_steps();
}

void PlanRun::gradient_absent(uint64_t number, TileId tile) {
  Step& step = require(number);
  const Plan::TileMoves& moves = plan_.of_tile[tile];
  CHECK(!step.tiles[tile].gradient_taken, "the gradient of tile ", tile, " was announced");
  step.speculation.gradient_absent(tile);
  step.gradients_due.erase(moves.gradient);
  --step.gradients_missing;
  for (MoveId id : {moves.gradient, moves.spill, moves.read, moves.fetch_gradient, moves.update}) {
    skip_if_any(step, id);
  }
  if (!plan_.placements[tile].is_updated_in_place()) skip_if_any(step, moves.write);
  close_finished_steps();
}

void PlanRun::stop_speculating(uint64_t number) {
  Step& step = require(number);
  if (!step.speculation.stop()) return;
  // What was updated is certain not to be confirmed: its write would be wasted.
  for (TileId tile = 0; tile < step.tiles.size(); ++tile) {
    if (step.speculation.was_speculative(tile)) skip_if_any(step, plan_.of_tile[tile].write);
    MoveId update = plan_.of_tile[tile].update;
    if (update != kNoMove && step.state[update] == State::ready) {
      take_from_ready(step, update);
      step.parked.insert(update);
      step.state[update] = State::parked;
    }
  }
  postpone_updates(step);
  reconsider_all_parked(step);
  close_finished_steps();
}

void PlanRun::abandon(uint64_t number) {
  Step& step = require(number);
  CHECK(!step.speculation.verdict(), "step ", number, " can no longer be abandoned");
  for (TileId tile = 0; tile < step.tiles.size(); ++tile) {
    MoveId gradient = plan_.of_tile[tile].gradient;
    if (gradient == kNoMove || is_over({number, gradient})) continue;
    if (step.tiles[tile].gradient_taken && plan_.moves[gradient].takes != Pool::none) {
      ++pool_free_[index(Pool::gradient)];
      tell_release(step, gradient);
    }
    --step.gradients_missing;
    step.gradients_due.erase(gradient);
    skip(step, gradient);
  }
  for (const Plan::TileMoves& moves : plan_.of_tile) {
    skip_if_any(step, moves.download);
    skip_if_any(step, moves.write);
  }
  for (MoveId id = 0; id < plan_.moves.size(); ++id) {  // of the passes, what has not begun
    if (plan_.moves[id].use != kNone && plan_.moves[id].kind != MoveKind::release) skip(step, id);
  }
  skip_if_any(step, plan_.commit);
  give_verdict(number, Verdict::skip);
}

void PlanRun::give_verdict(uint64_t number, Verdict verdict) {
  Step& step = require(number);
  StepSpeculation& speculation = step.speculation;
  CHECK(!speculation.verdict(), "step ", number, " has its verdict");
  CHECK(step.gradients_missing == 0, "step ", number, " misses ", step.gradients_missing, " gradients");
  CHECK(verdict != Verdict::confirm || !speculation.stopped(), "step ", number,
        " stopped speculating and is confirmed");
  speculation.give(verdict);
  for (TileId tile = 0; tile < step.tiles.size(); ++tile) {
    const Plan::TileMoves& moves = plan_.of_tile[tile];
    const bool redo = speculation.is_redone(tile);
    const bool is_in_memory = plan_.placements[tile].is_updated_in_place();
    if (verdict == Verdict::skip) {
      for (MoveId id : {moves.spill, moves.read, moves.fetch_gradient, moves.update}) skip_if_any(step, id);
    }
    if (redo || (verdict == Verdict::skip && !is_in_memory)) skip_if_any(step, moves.write);
    if (redo) continue;
    if (!speculation.is_restored(tile)) skip_if_any(step, moves.reread);
    for (MoveId id : {moves.fetch_again, moves.update_again, moves.write_again}) skip_if_any(step, id);
  }
  reconsider_all_parked(step);
  close_finished_steps();
}

bool PlanRun::gradients_complete(uint64_t number) const {
  const Step* step = find(number);
  return step == nullptr || step->gradients_missing == 0;
}

}  // namespace penstock
