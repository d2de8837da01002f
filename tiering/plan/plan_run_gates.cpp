// What keeps a move of a PlanRun from being issued: its gate, its memory, its lane's room, and moves that go before it.
#include "tiering/plan/plan_run.h"

#include <algorithm>

namespace penstock {
namespace {

size_t index(Pool pool) { return static_cast<size_t>(pool); }

}  // namespace

bool PlanRun::gate_open(const Step& step, MoveId id) const {
  const Move& move = plan_.moves[id];
  auto over = [&](MoveId other) {
    return other == kNoMove || step.state[other] == State::ended || step.state[other] == State::skipped;
  };
  switch (move.kind) {
    case MoveKind::update: {
      const MoveId fetch = plan_.of_tile[move.tile].fetch_gradient;
      bool gradient_here =
          step.tiles[move.tile].gradient_held || (fetch != kNoMove && step.state[fetch] == State::ended);
      return gradient_here && step.speculation.may_update(move.tile);
    }
    case MoveKind::fetch_gradient:
      return !step.tiles[move.tile].gradient_held;
    case MoveKind::reread_state:
      return step.speculation.verdict().has_value() || step.speculation.is_postponed(move.tile);
    case MoveKind::fetch_gradient_again:
    case MoveKind::update_again:
    case MoveKind::write_state_again:
    case MoveKind::verdict:
      return step.speculation.verdict().has_value();
    case MoveKind::release: {
      const Move& taker = plan_.moves[move.gives_back];
      if (taker.kind != MoveKind::gradient || plan_.of_tile[taker.tile].spill == kNoMove) return true;
      // A spilled gradient leaves host memory with its update, or at once if that has to wait for the verdict.
      MoveId update = plan_.of_tile[taker.tile].update;
      return over(update) || (step.state[update] != State::in_flight && !step.speculation.may_update(taker.tile));
    }
    default:
      return true;
  }
}

// A deferred tile's read does not press: it would take the windows in which state is read ahead of the gradients that
// backward is making.
void PlanRun::press(Step& step, TileId tile) {
  const Plan::TileMoves& moves = plan_.of_tile[tile];
  const bool is_to_be_read = step.takers[index(Pool::window)].contains(moves.read);
  if (is_to_be_read && step.tiles[tile].gradient_taken && !moves.is_deferred) step.pressing.insert(moves.read);
}

MoveId PlanRun::first_taker(const Step& step, Pool pool) const {
  // Before the verdict, where nothing is updated, no gradient waits for a window either.
  if (pool == Pool::window && !step.pressing.empty() && step.speculation.any_may_update()) return step.pressing.first();
  return step.takers[index(pool)].first();
}

bool PlanRun::earlier_step_takes(const Step& step, Pool pool) const {
  for (const Step& open : steps_) {
    if (&open == &step) break;
    if (!open.takers[index(pool)].empty()) return true;
  }
  return false;
}

bool PlanRun::has_memory(MoveId id) const {
  const Move& move = plan_.moves[id];
  if (move.takes == Pool::none) return true;
  const bool may_take_all = move.takes != Pool::window || move.kind == MoveKind::reread_state;
  return pool_free_[index(move.takes)] > (may_take_all ? 0 : plan_.ahead_windows);
}

// Whether the tile's state was read, and its update can only wait: the gradient has not come, or has left again.
bool PlanRun::waits_without_gradient(const Step& step, MoveId read) const {
  const TileId tile = plan_.moves[read].tile;
  const Plan::TileMoves& moves = plan_.of_tile[tile];
  const State update = step.state[moves.update];
  if (step.state[read] != State::ended || (update != State::waiting && update != State::parked)) return false;
  if (!step.tiles[tile].gradient_taken) return true;
  if (step.state[moves.gradient] != State::ended || step.tiles[tile].gradient_held) return false;
  const State fetch = moves.fetch_gradient == kNoMove ? State::skipped : step.state[moves.fetch_gradient];
  return fetch == State::waiting || fetch == State::parked || fetch == State::ready;
}

// The one whose window serves a pressing read sooner; kNoMove where none does.
MoveId PlanRun::read_to_take_back(const Step& step, MoveId wanted_by) const {
  if (!step.pressing.contains(wanted_by) || !step.speculation.any_may_update()) return kNoMove;
  MoveId latest = kNoMove;
  for (MoveId read : step.windows_held) {
    const bool later = !step.tiles[plan_.moves[read].tile].gradient_taken || read > wanted_by;
    if (later && waits_without_gradient(step, read) && (latest == kNoMove || read > latest)) latest = read;
  }
  return latest;
}

// As if the read had not been issued.
void PlanRun::take_back(Step& step, MoveId read) {
  const Move& move = plan_.moves[read];
  for (MoveId follower : followers_.of(read)) {
    ++step.waits[follower];
    if (step.state[follower] == State::skipped) continue;  // a redo, once the verdict is known
    step.parked.erase(follower);
    step.state[follower] = State::waiting;
  }
  ++step.unfinished;
  step.state[read] = State::ready;
  make_ready(step, read);
  step.takers[index(move.takes)].insert(read);
  press(step, move.tile);
  std::erase(step.windows_held, read);
  ++pool_free_[index(move.takes)];
  tell_release(step, read);
}

// A fetch that finds all of its unit's weights asks nothing of the drives.
uint64_t PlanRun::room_of(const Step& step, MoveId id) const {
  const Move& move = plan_.moves[id];
  const bool finds_all = may_find_weights(id) && step.weights_to_leave[move.unit] == 0;
  return finds_all ? 0 : penstock::room_of(move);
}

bool PlanRun::has_room(const Step& step, MoveId id) const {
  const Move& move = plan_.moves[id];
  const uint64_t taken = room_taken_[index(move.lane)], room = room_of(step, id);
  return taken == 0 || room == 0 || taken + room <= plan_.lane_room[index(move.lane)];
}

// Weights and activations that the newest step computes with soon: computing would wait for them, while state is as
// good a little later. Their places are few, so that they leave the lane to others again.
MoveId PlanRun::read_for_computing(Lane lane) const {
  if (lane != Lane::nvme_read || steps_.empty()) return kNoMove;
  return steps_.back().ready[index(lane)][index(Pool::none)].first();
}

// A read of state that is as good a little later, while the newest step waits for its first weights to be written. What
// is read ahead of a verdict is needed behind all that the step before still writes, which forward waits for.
bool PlanRun::gives_way(const Step& step, MoveId id) const {
  const Move& move = plan_.moves[id];
  if (steps_.size() < 2) return false;
  if (move.kind == MoveKind::reread_state) return !step.speculation.verdict();
  if (move.kind != MoveKind::read_state) return false;
  const Step& newest = steps_.back();
  const auto is_current = [&](uint32_t unit) {
    return newest.weights_to_leave[unit] == 0 || is_over({newest.number, current_[unit]});
  };
  if (std::ranges::all_of(first_units_, is_current)) return false;
  if (&step == &newest) return true;
  // Redos take windows behind what is deferred, and may be what computing waits for.
  const bool redoes = step.takers[index(Pool::window)].after(last_first_read_) != kNoMove;
  return plan_.of_tile[move.tile].is_deferred && !redoes;
}

}  // namespace penstock
