#include "tests/support/plan_world.h"

#include <algorithm>
#include <utility>

namespace penstock::test {

PlanWorld::PlanWorld(const Plan& plan, const WorldOptions& options)
    : plan_(plan),
      options_(options),
      run_(plan, [this](PlanRun::Ticket taker) { released(taker); }),
      random_(options.seed),
      tiles_(plan.tiles.size()) {
  for (TileWorld& tile : tiles_) tile.slots.resize(options.slots);
  for (const Compute& compute : plan.computes) computes_[compute.move] = &compute;
}

void PlanWorld::check_place(PlanRun::Ticket ticket) {
  const Move& move = plan_.moves[ticket.move];
  const auto check_against = [&](MoveKey other) {
    const Move& there = plan_.moves[other.second];
    if (there.area != move.area || other == MoveKey{ticket.step, ticket.move}) return;
    const bool apart = there.place_offset_bytes + there.place_bytes <= move.place_offset_bytes ||
                       move.place_offset_bytes + move.place_bytes <= there.place_offset_bytes;
    if (!apart) fail(text("step ", ticket.step, ": move ", ticket.move, " fills the place of move ", other.second));
  };
  for (const auto& [other, content] : filled_) check_against(other);
  for (const auto& [other, tiles] : left_) check_against(other);
}

void PlanWorld::fill_place(PlanRun::Ticket ticket) {
  const Move& move = plan_.moves[ticket.move];
  check_place(ticket);
  std::vector<History>& content = filled_[{ticket.step, ticket.move}];
  if (move.kind != MoveKind::fetch_weight) return;
  const std::map<TileId, std::optional<History>> left = std::exchange(left_[{ticket.step, ticket.move}], {});
  left_.erase({ticket.step, ticket.move});
  for (TileId id = plan_.tiles.first_of(move.unit); id < plan_.tiles.first_of(move.unit + 1); ++id) {
    const TileWorld& tile = tiles_[id];
    if (run_.finds_weight(ticket, id) != left.contains(id)) fail(text("tile ", id, " is not where it was left"));
    if (const auto found = left.find(id); found != left.end()) {
      if (!found->second) fail(text("step ", ticket.step, ": tile ", id, " is found before its update has ended"));
      content.push_back(found->second.value_or(0));
      continue;
    }
    if (tile.slots[tile.current].writers > 0) fail(text("step ", ticket.step, ": tile ", id, " fetched while written"));
    content.push_back(tile.slots[tile.current].history);
  }
}

void PlanWorld::released(PlanRun::Ticket taker) {
  if (plan_.moves[taker.move].area == Area::none) return;
  if (filled_.erase({taker.step, taker.move}) == 0) fail(text("move ", taker.move, " is released and was not filled"));
}

void PlanWorld::check_weights_of_compute(PlanRun::Ticket ticket) {
  auto expected = [&](TileId id) { return ticket.step == 0 ? History{0} : expected_.at(ticket.step - 1)[id]; };
  for (const Compute::Weights& weights : computes_.at(ticket.move)->weights) {
    const TileId first = plan_.tiles.first_of(weights.unit), end = plan_.tiles.first_of(weights.unit + 1);
    const auto there = filled_.find({ticket.step, weights.brought_by});
    if (weights.brought_by != kNoMove && there == filled_.end()) {
      fail(text("step ", ticket.step, ": move ", ticket.move, " computes with weights that have left"));
      return;
    }
    for (TileId id = first; id < end; ++id) {
      const bool copied = weights.brought_by != kNoMove && !there->second.empty();
      if (!copied && plan_.placements[id].weight_on_drives()) continue;  // on a device, whose places have no history
      if ((copied ? there->second[id - first] : tiles_[id].memory_weight) != expected(id)) {
        fail(text("step ", ticket.step, ": move ", ticket.move, " computes with another version of tile ", id));
      }
    }
  }
}

PlanWorld::History PlanWorld::after(History before, uint64_t step, Verdict factor) {
  uint64_t mixed = before ^ ((step + 1) * 0x9e3779b97f4a7c15u + (factor == Verdict::strike ? 0x1234567u : 0));
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
  return mixed ^ (mixed >> 32);
}

void PlanWorld::begin_write(TileWorld& tile, uint32_t id, uint64_t step, bool speculative) {
  for (size_t slot = 0; slot < tile.slots.size(); ++slot) {
    bool keeps_current = speculative && slot == tile.current;
    if (slot == tile.durable || slot == tile.committing || keeps_current || static_cast<long>(slot) == tile.unconfirmed)
      continue;
    if (tile.slots[slot].readers > 0 || tile.slots[slot].writers > 0) continue;
    // Where there is a choice a final write takes a slot that is not current, as the store does.
    if (slot == tile.current && tile.slots.size() > 2) continue;
    tile.of_step[step].writing_to = slot;
    ++tile.slots[slot].writers;
    if (speculative) tile.unconfirmed = static_cast<long>(slot);
    return;
  }
  fail(text("step ", step, ": no free slot for tile ", id));
}

void PlanWorld::update(TileWorld& tile, uint32_t id, uint64_t step, bool speculative) {
  if (!tile.of_step[step].gradient_here && !tile.of_step[step].gradient_returned)
    fail(text("step ", step, ": tile ", id, " updated without gradient"));
  const MoveId release = plan_.of_tile[id].release_gradient;  // none where it has a place of its own
  if (tile.of_step[step].gradient_here && release != kNoMove && run_.is_over({step, release}) &&
      !tile.of_step[step].gradient_returned) {
    fail(text("step ", step, ": tile ", id, " updated after its gradient had left"));
  }
  if (speculative && stopped_.count(step) != 0) fail(text("step ", step, ": tile ", id, " still speculates"));
  Verdict factor = speculative ? Verdict::confirm : verdict(step);
  for (const auto& [other, of_step] : tile.of_step) {
    if (of_step.downloading) fail(text("step ", step, ": tile ", id, " updated while it is downloaded"));
  }
  History& place = plan_.placements[id].is_updated_in_place() ? tile.memory : tile.of_step[step].window;
  const History before = place;
  if (const MoveId copy = plan_.of_tile[id].weight_copy; copy != kNoMove && !run_.speculation(step).is_redone(id)) {
    const auto there = filled_.find({step, copy});
    if (there == filled_.end()) {
      fail(text("step ", step, ": tile ", id, " updated with a copy of its weight that has left"));
    } else if (there->second[id - plan_.tiles.first_of(plan_.tiles[id].unit)] != before) {
      fail(text("step ", step, ": the copy of tile ", id, "'s weight is of another version"));
    }
  }
  place = after(place, step, factor);
  if (!plan_.placements[id].weight_on_drives()) {
    // Weight and state are of one version before an update, wherever either rests.
    if (tile.memory_weight != before) fail(text("step ", step, ": the weight of tile ", id, " is of another version"));
    tile.memory_weight = place;
  }
}

void PlanWorld::leave_weight(PlanRun::Ticket ticket) {
  const std::optional<PlanRun::Ticket> fetch = run_.leaves_weight_to(ticket);
  if (!fetch) return;
  check_place(*fetch);
  left_[{fetch->step, fetch->move}][plan_.moves[ticket.move].tile] = std::nullopt;
  ++weights_left_;
}

void PlanWorld::begin_move(PlanRun::Ticket ticket) {
  const Move& move = plan_.moves[ticket.move];
  ++issued_[move.kind];
  if (move.area != Area::none) fill_place(ticket);
  if (computes_.contains(ticket.move)) check_weights_of_compute(ticket);
  if (move.kind == MoveKind::commit) {
    for (uint32_t id = 0; id < tiles_.size(); ++id) {
      TileWorld& tile = tiles_[id];
      if (tile.unconfirmed >= 0) fail(text("step ", ticket.step, ": a root names an unconfirmed slot"));
      if (tile.slots[tile.current].history != expected_[ticket.step][id]) {
        fail(text("step ", ticket.step, ": the root names another step's version of tile ", id));
      }
      tile.committing = tile.current;
    }
  }
  if (move.tile == kNone) return;
  TileWorld& tile = tiles_[move.tile];
  TileWorld::OfStep& now = tile.of_step[ticket.step];
  const StepSpeculation& speculation = run_.speculation(ticket.step);
  switch (move.kind) {
    case MoveKind::read_state:
    case MoveKind::reread_state:
      if (tile.slots[tile.current].writers > 0)
        fail(text("step ", ticket.step, ": tile ", move.tile, " read while written"));
      for (PlanRun::Ticket other : in_flight_) {
        if (other.step == ticket.step && other.move == plan_.of_tile[move.tile].update)
          fail(text("step ", ticket.step, ": tile ", move.tile, " is read again under its update"));
        if (other.step == ticket.step && other.move == plan_.of_tile[move.tile].read)
          fail(text("step ", ticket.step, ": tile ", move.tile, " is read again while it is read"));
      }
      now.reading_from = tile.current;
      ++tile.slots[tile.current].readers;
      break;
    case MoveKind::write_state:
      begin_write(tile, move.tile, ticket.step, speculation.was_speculative(move.tile) && !speculation.verdict());
      break;
    case MoveKind::write_state_again:
      begin_write(tile, move.tile, ticket.step, false);
      break;
    case MoveKind::download_state:
      now.window = tile.memory;
      now.downloading = true;
      break;
    case MoveKind::update:
      update(tile, move.tile, ticket.step, speculation.was_speculative(move.tile));
      leave_weight(ticket);
      break;
    case MoveKind::update_again:
      update(tile, move.tile, ticket.step, false);
      leave_weight(ticket);
      break;
    case MoveKind::spill_gradient:
      if (tile.spills + tile.returns > 0) fail(text("tile ", move.tile, ": a gradient is spilled over another"));
      ++tile.spills;
      break;
    case MoveKind::fetch_gradient:
    case MoveKind::fetch_gradient_again:
      if (!now.gradient_on_nvme || tile.spills + tile.returns > 0) {
        fail(text("tile ", move.tile, ": a gradient returns that was not spilled"));
      }
      ++tile.returns;
      break;
    default:
      break;
  }
}

void PlanWorld::end_move(PlanRun::Ticket ticket) {
  const Move& move = plan_.moves[ticket.move];
  if (move.kind == MoveKind::commit) {
    for (TileWorld& tile : tiles_) tile.durable = tile.committing;
  }
  if (move.tile == kNone) return;
  TileWorld& tile = tiles_[move.tile];
  TileWorld::OfStep& now = tile.of_step[ticket.step];
  switch (move.kind) {
    case MoveKind::read_state:
    case MoveKind::reread_state:
      --tile.slots[now.reading_from].readers;
      now.window = tile.slots[now.reading_from].history;
      if (move.kind == MoveKind::reread_state) tile.memory_weight = now.window;
      break;
    case MoveKind::write_state:
    case MoveKind::write_state_again: {
      size_t slot = now.writing_to;
      --tile.slots[slot].writers;
      tile.slots[slot].history = plan_.placements[move.tile].state_in_host() ? tile.memory : now.window;
      if (plan_.placements[move.tile].state_on_device() &&
          !run_.is_over({ticket.step, plan_.of_tile[move.tile].download})) {
        fail(text("step ", ticket.step, ": tile ", move.tile, " is written before it has come down"));
      }
      // A speculative write is made current, or dropped, by the verdict; the ends of others are their own.
      bool dropped = speculated_[ticket.step][move.tile] && move.kind == MoveKind::write_state &&
                     verdict(ticket.step) != Verdict::confirm;
      if (tile.unconfirmed != static_cast<long>(slot) && !dropped) {
        tile.current = slot;
      }
      break;
    }
    case MoveKind::update:
    case MoveKind::update_again:
      if (const auto fetch = run_.leaves_weight_to(ticket)) left_[{fetch->step, fetch->move}][move.tile] = now.window;
      break;
    case MoveKind::download_state:
      now.downloading = false;
      break;
    case MoveKind::spill_gradient:
      --tile.spills;
      now.gradient_on_nvme = true;
      break;
    case MoveKind::fetch_gradient:
    case MoveKind::fetch_gradient_again:
      --tile.returns;
      now.gradient_returned = true;
      break;
    default:
      break;
  }
}

bool PlanWorld::waits_on_stream(PlanRun::Ticket ticket) const {
  std::vector<MoveId> before = plan_.moves[ticket.move].after;
  for (size_t i = 0; i < before.size(); ++i) {
    if (ordered_.contains({ticket.step, before[i]})) return true;
    const Move& move = plan_.moves[before[i]];
    if (move.kind == MoveKind::release && is_on_stream(plan_, move)) {
      before.insert(before.end(), move.after.begin(), move.after.end());
    }
  }
  return false;
}

void PlanWorld::check_pools() {
  for (size_t pool = 0; pool < kPools; ++pool) {
    if (run_.pool_free(static_cast<Pool>(pool)) > plan_.pool_pieces[pool]) {
      fail(text("pool ", name_of(static_cast<Pool>(pool)), " has more free than it holds"));
    }
  }
}

void PlanWorld::check_room(Lane lane) {
  uint64_t moves = 0, taken = 0;
  for (PlanRun::Ticket ticket : in_flight_) {
    const Move& move = plan_.moves[ticket.move];
    if (ordered_.contains({ticket.step, ticket.move})) continue;
    moves += move.lane == lane;
    const bool asks_nothing = move.kind == MoveKind::fetch_weight && run_.bytes_of(ticket) == 0;
    moves -= move.lane == lane && asks_nothing;
    taken += move.lane == lane && !asks_nothing ? room_of(move) : 0;
  }
  const uint64_t room = plan_.lane_room[static_cast<size_t>(lane)];
  if (moves > 1 && taken > room) fail(text(moves, " moves take ", taken, " of ", room, " on ", name_of(lane)));
}

std::optional<uint32_t> PlanWorld::next_gradient(uint64_t step) {
  if (options_.gradients == WorldOptions::Gradients::as_planned) return run_.next_gradient(step);
  for (size_t i = coming_.size(); i-- > 0;) {
    const TileId tile = coming_[i];
    if (!run_.gradient_is_due(step, tile)) continue;
    return tile;
  }
  return std::nullopt;
}

std::string PlanWorld::run() {
  std::vector<History> expected(tiles_.size(), 0);
  uint64_t begun = 0;
  bool gradients_under_way = false;
  uint64_t gradient_step = 0;
  uint64_t quiet = 0;
  while (failure_.empty() && (begun < options_.steps || !run_.idle())) {
    bool progress = false;
    const bool may_begin = !gradients_under_way && begun < options_.steps && run_.can_begin();
    if (may_begin && options_.begins_late && random_() % 32 != 0) {
      progress = true;
    } else if (may_begin) {
      bool speculate = begun >= options_.speculate.size() || options_.speculate[begun];
      PlanRun::StepChoices choices{.speculate = speculate, .durable = plan_.durability.durable_after(begun)};
      if (options_.fewer_micro_batches && random_() % 2 == 0) {
        choices.micro_batches = 1 + static_cast<uint32_t>(random_() % plan_.micro_batches);
      }
      run_.begin(begun, choices);
      speculated_[begun].assign(tiles_.size(), false);
      gradient_step = begun++;
      coming_.clear();
      for (const Move& move : plan_.moves) {
        if (move.kind == MoveKind::gradient) coming_.push_back(move.tile);
      }
      if (options_.gradients == WorldOptions::Gradients::shuffled)
        std::shuffle(coming_.begin(), coming_.end(), random_);
      gradients_under_way = true;
      progress = true;
    }
    // Any order of lanes, any order of ends.
    size_t start = random_() % kLanes;
    for (size_t i = 0; i < kLanes; ++i) {
      Lane lane = static_cast<Lane>((start + i) % kLanes);
      if (random_() % 3 == 0) continue;
      if (auto ticket = run_.next(lane)) {
        begin_move(*ticket);
        in_flight_.push_back(*ticket);
        check_room(lane);
        const Move& move = plan_.moves[ticket->move];
        if (options_.streams && is_on_stream(plan_, move)) {
          ahead_ += waits_on_stream(*ticket);
          ordered_.insert({ticket->step, ticket->move});
          if (move.kind == MoveKind::download_state) tiles_[move.tile].of_step[ticket->step].downloading = false;
          run_.ordered(*ticket);
        }
        if (move.kind == MoveKind::update) {
          speculated_[ticket->step][move.tile] = run_.speculation(ticket->step).was_speculative(move.tile);
        }
        progress = true;
      }
    }
    if (!in_flight_.empty() && random_() % 2 == 0) {
      size_t which = random_() % in_flight_.size();
      PlanRun::Ticket ticket = in_flight_[which];
      // What is on one stream ends in its order.
      const bool is_first =
          std::none_of(in_flight_.begin(), in_flight_.begin() + static_cast<long>(which), [&](PlanRun::Ticket other) {
            return ordered_.contains({other.step, other.move}) &&
                   plan_.moves[other.move].lane == plan_.moves[ticket.move].lane;
          });
      if (is_first && !waits_on_stream(ticket)) {
        in_flight_.erase(in_flight_.begin() + static_cast<long>(which));
        ordered_.erase({ticket.step, ticket.move});
        end_move(ticket);
        run_.ended(ticket);
        progress = true;
      }
    }
    if (gradients_under_way && random_() % 2 == 0) {
      if (auto tile = next_gradient(gradient_step)) {
        if (absent(gradient_step, *tile)) {
          run_.gradient_absent(gradient_step, *tile);
          progress = true;
        } else if (run_.try_take_gradient(gradient_step, *tile)) {
          tiles_[*tile].of_step[gradient_step].gradient_here = true;
          run_.gradient_complete(gradient_step, *tile);
          progress = true;
        }
      }
      Verdict outcome = verdict(gradient_step);
      if (plan_.clipping && outcome != Verdict::confirm && random_() % 8 == 0) {
        run_.stop_speculating(gradient_step);
        stopped_.insert(gradient_step);
      }
      if (run_.gradients_complete(gradient_step)) {
        gradients_under_way = false;
        progress = true;
        if (plan_.clipping) {
          for (TileWorld& tile : tiles_) {
            if (tile.unconfirmed >= 0 && outcome == Verdict::confirm)
              tile.current = static_cast<size_t>(tile.unconfirmed);
            tile.unconfirmed = -1;
          }
        }
        run_.give_verdict(gradient_step, outcome);
        for (TileId tile = 0; tile < tiles_.size(); ++tile) {
          if (plan_.of_tile[tile].update != kNoMove && outcome != Verdict::skip && !absent(gradient_step, tile)) {
            expected[tile] = after(expected[tile], gradient_step, plan_.clipping ? outcome : Verdict::confirm);
          }
        }
        expected_[gradient_step] = expected;
      }
    }
    check_pools();
    quiet = progress || !in_flight_.empty() ? 0 : quiet + 1;
    if (quiet > 1000) fail("no progress: " + run_.stall_text());
  }
  for (TileId tile = 0; tile < tiles_.size() && failure_.empty(); ++tile) {
    const Placement& placement = plan_.placements[tile];
    const History found =
        placement.is_updated_in_place() ? tiles_[tile].memory : tiles_[tile].slots[tiles_[tile].current].history;
    if (found != expected[tile])
      fail(text("tile ", tile, " on ", name_of(placement.state), " differs from the plain loop"));
  }
  for (size_t pool = 0; pool < kPools && failure_.empty(); ++pool) {
    if (run_.pool_free(static_cast<Pool>(pool)) != plan_.pool_pieces[pool]) {
      fail(text("pool ", name_of(static_cast<Pool>(pool)), " is not whole at the end"));
    }
  }
  return failure_;
}

}  // namespace penstock::test
