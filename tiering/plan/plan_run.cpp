#include "tiering/plan/plan_run.h"

#include <algorithm>
#include <numeric>

namespace penstock {
namespace {

size_t index(Pool pool) { return static_cast<size_t>(pool); }

bool updates(const Move& move) { return move.kind == MoveKind::update || move.kind == MoveKind::update_again; }

}  // namespace

MoveLists MoveLists::followers(const Plan& plan, std::vector<MoveId> Move::*waits) {
  MoveLists lists;
  lists.begins.assign(plan.moves.size() + 2, 0);
  for (const Move& move : plan.moves) {
    for (MoveId other : move.*waits) ++lists.begins[other + 2];
  }
  std::partial_sum(lists.begins.begin(), lists.begins.end(), lists.begins.begin());
  lists.all.resize(lists.begins.back());
  // begins[m + 1] is where the next of m's goes, and so its end when all are there.
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    for (MoveId other : plan.moves[id].*waits) lists.all[lists.begins[other + 1]++] = id;
  }
  return lists;
}

PlanRun::PlanRun(const Plan& plan, OnRelease on_release)
    : plan_(plan),
      on_release_(std::move(on_release)),
      followers_(MoveLists::followers(plan, &Move::after)),
      followers_next_(MoveLists::followers(plan, &Move::after_previous)),
      pool_free_(plan.pool_pieces) {
  current_.resize(plan.tiles.units(), kNoMove);
  first_fetch_.resize(plan.tiles.units(), kNoMove);
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    on_stream_.push_back(is_on_stream(plan, move));
    if (move.kind == MoveKind::weights_current) current_[move.unit] = id;
    if (move.kind == MoveKind::fetch_weight && first_fetch_[move.unit] == kNoMove) first_fetch_[move.unit] = id;
    if (move.kind == MoveKind::read_state) last_first_read_ = id;
  }
  if (plan.computes.empty()) return;
  for (const Compute::Weights& weights : plan.computes.front().weights) {
    if (current_[weights.unit] != kNoMove) first_units_.push_back(weights.unit);
  }
}

// All that a step needs, so that nothing is allocated while it runs.
PlanRun::Step::Step(uint64_t of_number, const PlanRun& of, StepSpeculation of_step)
    : number(of_number), speculation(std::move(of_step)) {
  const size_t moves = of.plan_.moves.size();
  unfinished = moves;
  state.assign(moves, State::waiting);
  waits.resize(moves);
  tiles.resize(of.plan_.tiles.size());
  parked = gradients_due = pressing = MoveSet(moves);
  for (const Move& move : of.plan_.moves) {
    MoveSet& beside = ready[index(move.lane)][index(move.takes)];
    if (!beside.is_made()) beside = MoveSet(moves);
  }
  takers.fill(MoveSet(moves));
  windows_held.reserve(of.plan_.pool_pieces[index(Pool::window)]);
  weight_is_left.resize(tiles.size());
  for (uint32_t unit = 0; unit < of.first_fetch_.size(); ++unit) {
    weights_to_leave.push_back(of.plan_.tiles.first_of(unit + 1) - of.plan_.tiles.first_of(unit));
  }
  bytes_left.resize(weights_to_leave.size());
}

PlanRun::Step* PlanRun::find(uint64_t step) {
  for (Step& open : steps_) {
    if (open.number == step) return &open;
  }
  return nullptr;
}

const PlanRun::Step* PlanRun::find(uint64_t step) const { return const_cast<PlanRun*>(this)->find(step); }

PlanRun::Step& PlanRun::require(uint64_t step) {
  Step* open = find(step);
  CHECK(open != nullptr, "step ", step, " is not open");
  return *open;
}

bool PlanRun::can_begin() const {
  return steps_.empty() ||
         (steps_.size() == 1 && steps_.front().speculation.verdict() && steps_.front().gradients_missing == 0);
}

void PlanRun::begin(uint64_t number, StepChoices choices) {
  CHECK(can_begin(), "step ", number, " begins too early");
  const Step* previous = steps_.empty() ? nullptr : &steps_.back();
  CHECK(previous == nullptr || previous->number + 1 == number, "step ", number, " does not follow ", previous->number);
  auto outstanding = [&](MoveId follower, MoveId id) {
    if (previous == nullptr) return false;
    const State state = previous->state[id];
    return state != State::ended && state != State::skipped && !(state == State::ordered && on_stream_[follower]);
  };

  Step fresh(number, *this, StepSpeculation(plan_, choices.speculate, choices.may_be_discarded));
  for (MoveId id = 0; id < plan_.moves.size(); ++id) {
    const Move& move = plan_.moves[id];
    fresh.waits[id] = static_cast<uint32_t>(move.after.size());
    for (MoveId other : move.after_previous) fresh.waits[id] += outstanding(id, other);
    if (move.takes != Pool::none && move.kind != MoveKind::gradient) fresh.takers[index(move.takes)].insert(id);
    fresh.gradients_missing += move.kind == MoveKind::gradient;
  }
  steps_.push_back(std::move(fresh));
  Step& step = steps_.back();

  if (choices.micro_batches) leave_out_micro_batches(step, *choices.micro_batches);
  if (!choices.durable) {
    skip_if_any(step, plan_.commit);
    for (TileId tile = 0; tile < plan_.tiles.size(); ++tile) {
      if (!plan_.placements[tile].is_updated_in_place()) continue;
      skip_if_any(step, plan_.of_tile[tile].download);
      skip_if_any(step, plan_.of_tile[tile].write);
    }
  }
  postpone_updates(step);
  for (MoveId id = 0; id < plan_.moves.size(); ++id) {
    if (step.state[id] == State::waiting && step.waits[id] == 0) waits_over(step, id);
  }
  close_finished_steps();
}

// A step's micro-batches are the last of the plan's: its last group is the one whose weights the update uses. What is
// left out ends when it would have begun, because others wait for it in place of what it waits for.
void PlanRun::leave_out_micro_batches(Step& step, uint32_t given) {
  CHECK(given > 0 && given <= plan_.micro_batches, given, " micro-batches, planned for ", plan_.micro_batches);
  if (given == plan_.micro_batches) return;
  step.left_out.assign(plan_.moves.size(), false);
  for (MoveId id = 0; id < plan_.moves.size(); ++id) {
    const uint32_t micro_batch = plan_.moves[id].micro_batch;
    step.left_out[id] = micro_batch != kNone && micro_batch + given < plan_.micro_batches;
  }
}

void PlanRun::postpone_updates(Step& step) {
  for (TileId tile = 0; tile < step.tiles.size(); ++tile) {
    if (!step.speculation.postpones(tile)) continue;
    const Plan::TileMoves& moves = plan_.of_tile[tile];
    step.speculation.postpone(tile);
    for (MoveId id : {moves.read, moves.fetch_gradient, moves.update, moves.write}) skip_if_any(step, id);
  }
}

void PlanRun::waits_over(Step& step, MoveId id) {
  step.state[id] = State::parked;
  step.parked.insert(id);
  reconsider(step, id);
}

void PlanRun::reconsider(Step& step, MoveId id) {
  if (id == kNoMove || step.state[id] != State::parked || !gate_open(step, id)) return;
  const Move& move = plan_.moves[id];
  step.parked.erase(id);
  if (!step.left_out.empty() && step.left_out[id]) return finish(step, id, State::skipped);
  step.state[id] = State::ready;
  switch (move.kind) {
    case MoveKind::gradient:
      step.gradients_due.insert(id);
      return;
    case MoveKind::verdict:
    case MoveKind::weights_current:
      finish(step, id, State::ended);
      return;
    case MoveKind::release: {
      const Move& taker = plan_.moves[move.gives_back];
      if (step.state[move.gives_back] != State::skipped) {
        if (taker.takes != Pool::none) ++pool_free_[index(taker.takes)];
        tell_release(step, move.gives_back);
        std::erase(step.windows_held, move.gives_back);
      }
      if (taker.kind == MoveKind::gradient) step.tiles[taker.tile].gradient_held = false;
      finish(step, id, State::ended);
      if (taker.kind == MoveKind::gradient) reconsider(step, plan_.of_tile[taker.tile].fetch_gradient);
      return;
    }
    default:
      make_ready(step, id);
  }
}

void PlanRun::make_ready(Step& step, MoveId id) {
  const Move& move = plan_.moves[id];
  step.ready[index(move.lane)][index(move.takes)].insert(id);
  ++step.ready_count[index(move.lane)];
}

void PlanRun::take_from_ready(Step& step, MoveId id) {
  const Move& move = plan_.moves[id];
  step.ready[index(move.lane)][index(move.takes)].erase(id);
  --step.ready_count[index(move.lane)];
}

void PlanRun::reconsider_all_parked(Step& step) {
  for (MoveId id = step.parked.first(); id != kNoMove; id = step.parked.after(id)) reconsider(step, id);
}

std::optional<PlanRun::Ticket> PlanRun::next(Lane lane) {
  if (const MoveId read = read_for_computing(lane); read != kNoMove) {
    if (!has_room(steps_.back(), read)) return std::nullopt;
    issue(steps_.back(), read);
    return Ticket{steps_.back().number, read};
  }
  if (room_taken_[index(lane)] >= plan_.lane_room[index(lane)]) return std::nullopt;
  for (Step& step : steps_) {
    if (step.ready_count[index(lane)] == 0) continue;
    MoveId best = kNoMove;
    for (size_t pool = 0; pool < kPools; ++pool) {
      const MoveSet& ready = step.ready[index(lane)][pool];
      if (ready.empty()) continue;
      MoveId first = pool == index(Pool::none) ? ready.first() : first_taker(step, static_cast<Pool>(pool));
      if (first >= best || !ready.contains(first) || gives_way(step, first)) continue;
      if (earlier_step_takes(step, plan_.moves[first].takes)) continue;
      if (has_memory(first) || read_to_take_back(step, first) != kNoMove) best = first;
    }
    if (best == kNoMove) continue;
    // A later move, if smaller, does not overtake it.
    if (!has_room(step, best)) return std::nullopt;
    if (!has_memory(best)) take_back(step, read_to_take_back(step, best));
    issue(step, best);
    return Ticket{step.number, best};
  }
  return std::nullopt;
}

void PlanRun::issue(Step& step, MoveId id) {
  const Move& move = plan_.moves[id];
  take_from_ready(step, id);
  step.state[id] = State::in_flight;
  room_taken_[index(move.lane)] += room_of(step, id);
  if (move.takes != Pool::none) {
    --pool_free_[index(move.takes)];
    step.takers[index(move.takes)].erase(id);
  }
  if (move.kind == MoveKind::read_state) {
    step.pressing.erase(id);
    step.windows_held.push_back(id);
  }
  if (move.kind == MoveKind::update) {
    step.speculation.update_issued(move.tile);
    if (step.tiles[move.tile].gradient_held) skip_if_any(step, plan_.of_tile[move.tile].fetch_gradient);
  }
  if (updates(move)) leave_weight(step, move.tile);
}

// The place is free when the fetch waits for nothing else than that its unit's weights are written. Since the next step
// is open, no verdict takes the update back.
void PlanRun::leave_weight(const Step& step, TileId tile) {
  Step* next_step = find(step.number + 1);
  const uint32_t unit = plan_.tiles[tile].unit;
  const MoveId fetch = first_fetch_[unit];
  if (next_step == nullptr || fetch == kNoMove || !plan_.placements[tile].state_on_drives()) return;
  const bool is_needed = next_step->left_out.empty() || !next_step->left_out[fetch];
  const bool is_free = next_step->state[fetch] == State::waiting && next_step->waits[fetch] == 1;
  if (!is_needed || !is_free || is_over({next_step->number, current_[unit]})) return;
  next_step->weight_is_left[tile] = true;
  next_step->bytes_left[unit] += plan_.tiles[tile].weight_bytes;
}

void PlanRun::weight_left(const Step& step, TileId tile) {
  Step* next_step = find(step.number + 1);
  if (next_step == nullptr || !next_step->weight_is_left[tile]) return;
  const uint32_t unit = plan_.tiles[tile].unit;
  const MoveId fetch = first_fetch_[unit];
  if (--next_step->weights_to_leave[unit] > 0) return;
  // In place of weights_current. Where the next step was given up, nobody fetches.
  if (--next_step->waits[fetch] == 0 && next_step->state[fetch] == State::waiting) waits_over(*next_step, fetch);
}

void PlanRun::ended(Ticket ticket) {
  Step& step = require(ticket.step);
  const bool was_ordered = step.state[ticket.move] == State::ordered;
  CHECK(was_ordered || step.state[ticket.move] == State::in_flight, "move ", ticket.move, " of step ", ticket.step,
        " is not in flight");
  const Move& move = plan_.moves[ticket.move];
  if (!was_ordered) room_taken_[index(move.lane)] -= room_of(step, ticket.move);
  finish(step, ticket.move, State::ended);
  close_finished_steps();
}

void PlanRun::ordered(Ticket ticket) {
  Step& step = require(ticket.step);
  CHECK(step.state[ticket.move] == State::in_flight && on_stream_[ticket.move], "move ", ticket.move, " of step ",
        ticket.step, " is not on its way to a stream");
  const Move& move = plan_.moves[ticket.move];
  room_taken_[index(move.lane)] -= room_of(step, ticket.move);
  step.state[ticket.move] = State::ordered;
  tell_followers(step, ticket.move, Followers::on_streams);
}

void PlanRun::tell_followers(Step& step, MoveId id, Followers which) {
  auto is_told = [&](MoveId follower) {
    return which == Followers::all || on_stream_[follower] == (which == Followers::on_streams);
  };
  const Move& move = plan_.moves[id];
  const bool all_left = move.kind == MoveKind::weights_current && step.weights_to_leave[move.unit] == 0;
  for (MoveId follower : followers_.of(id)) {
    if (!is_told(follower) || (all_left && follower == first_fetch_[move.unit])) continue;
    if (--step.waits[follower] == 0 && step.state[follower] == State::waiting) waits_over(step, follower);
  }
  Step* next_step = find(step.number + 1);
  if (next_step == nullptr) return;
  for (MoveId follower : followers_next_.of(id)) {
    if (!is_told(follower)) continue;
    if (--next_step->waits[follower] == 0 && next_step->state[follower] == State::waiting) {
      waits_over(*next_step, follower);
    }
  }
}

void PlanRun::finish(Step& step, MoveId id, State how) {
  const bool was_ordered = step.state[id] == State::ordered;
  step.state[id] = how;
  --step.unfinished;
  tell_followers(step, id, was_ordered ? Followers::others : Followers::all);
  // What a gate looks at besides the verdict.
  const Move& move = plan_.moves[id];
  if (move.tile == kNone) return;
  const Plan::TileMoves& of_tile = plan_.of_tile[move.tile];
  if (move.kind == MoveKind::fetch_gradient) reconsider(step, of_tile.update);
  if (move.kind == MoveKind::update) reconsider(step, of_tile.release_gradient);
  if (updates(move)) weight_left(step, move.tile);
}

void PlanRun::skip(Step& step, MoveId id) {
  State state = step.state[id];
  if (state != State::waiting && state != State::parked && state != State::ready) return;
  const Move& move = plan_.moves[id];
  step.parked.erase(id);
  if (step.ready[index(move.lane)][index(move.takes)].contains(id)) take_from_ready(step, id);
  if (move.takes != Pool::none) step.takers[index(move.takes)].erase(id);
  step.pressing.erase(id);
  finish(step, id, State::skipped);
}

void PlanRun::skip_if_any(Step& step, MoveId id) {
  if (id != kNoMove) skip(step, id);
}

void PlanRun::close_finished_steps() {
  while (!steps_.empty() && steps_.front().unfinished == 0) steps_.pop_front();
}

bool PlanRun::is_over(Ticket ticket) const {
  const Step* step = find(ticket.step);
  if (step == nullptr) return true;
  State state = step->state[ticket.move];
  return state == State::ended || state == State::skipped;
}

bool PlanRun::is_skipped(Ticket ticket) const {
  const Step* step = find(ticket.step);
  return step != nullptr && step->state[ticket.move] == State::skipped;
}

std::optional<PlanRun::Ticket> PlanRun::leaves_weight_to(Ticket update) const {
  const Move& move = plan_.moves[update.move];
  const Step* next_step = find(update.step + 1);
  if (!updates(move) || next_step == nullptr || !next_step->weight_is_left[move.tile]) return std::nullopt;
  return Ticket{next_step->number, first_fetch_[move.unit]};
}

bool PlanRun::finds_weight(Ticket fetch, TileId tile) const {
  const Step* step = find(fetch.step);
  return step != nullptr && may_find_weights(fetch.move) && step->weight_is_left[tile];
}

uint64_t PlanRun::bytes_of(Ticket ticket) const {
  const Move& move = plan_.moves[ticket.move];
  const Step* step = find(ticket.step);
  return step != nullptr && may_find_weights(ticket.move) ? move.bytes - step->bytes_left[move.unit] : move.bytes;
}

const StepSpeculation& PlanRun::speculation(uint64_t number) const {
  const Step* step = find(number);
  CHECK(step != nullptr, "step ", number, " is not open");
  return step->speculation;
}

std::string PlanRun::stall_text() const {
  static constexpr const char* kStates[] = {"waits for other moves",
                                            "waits for the verdict or its gradient",
                                            "waits for its lane or for memory",
                                            "is in flight",
                                            "is on its stream",
                                            "",
                                            ""};
  std::string out;
  for (const Step& step : steps_) {
    for (MoveId id = 0; id < step.state.size(); ++id) {
      if (step.state[id] == State::ended || step.state[id] == State::skipped) continue;
      const Move& move = plan_.moves[id];
      out += text(out.empty() ? "" : "; ", "step ", step.number, " move ", id, " (", name_of(move.kind),
                  move.tile == kNone ? std::string() : text(" of tile ", move.tile), ") ",
                  kStates[static_cast<size_t>(step.state[id])]);
      break;
    }
  }
  return out;
}

}  // namespace penstock
