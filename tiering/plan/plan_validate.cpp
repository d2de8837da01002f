// Whether a plan can run: its moves wait for earlier ones, and its memory is taken and given back in an order that
// holds.
#include <algorithm>

#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan.h"

namespace penstock {
namespace {

Status broken(const Plan& plan, MoveId id, const std::string& how) {
  return Status(Code::kUsage, text("plan: move ", id, " (", name_of(plan.moves[id].kind), "): ", how));
}

bool takes_memory(const Move& move) { return move.takes != Pool::none || move.area != Area::none; }

Status validate_waits(const Plan& plan) {
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    for (MoveId other : move.after) {
      if (other >= id) return broken(plan, id, text("waits for move ", other, ", which comes later"));
    }
    for (MoveId other : move.after_previous) {
      if (other >= plan.moves.size()) {
        return broken(plan, id, text("waits for move ", other, ", which does not exist"));
      }
    }
    if (move.takes != Pool::none && plan.pool_pieces[static_cast<size_t>(move.takes)] == 0) {
      return broken(plan, id, text("takes a ", name_of(move.takes), ", and there is none"));
    }
  }
  return Status();
}

// By move: the release that gives back what it took.
Result<std::vector<MoveId>> releases_of(const Plan& plan) {
  std::vector<MoveId> releases(plan.moves.size(), kNoMove);
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    if (move.kind != MoveKind::release) continue;
    if (move.gives_back >= id || !takes_memory(plan.moves[move.gives_back])) {
      return broken(plan, id, "gives back what no earlier move took");
    }
    MoveId& release = releases[move.gives_back];
    if (release != kNoMove) return broken(plan, id, text("gives back move ", move.gives_back, " twice"));
    release = id;
  }
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    if (takes_memory(plan.moves[id]) && releases[id] == kNoMove) {
      return broken(plan, id, "takes memory that nothing gives back");
    }
  }
  return releases;
}

bool names(const std::vector<MoveId>& moves, MoveId id) {
  return std::find(moves.begin(), moves.end(), id) != moves.end();
}

// Whoever fills a place waits for the release of what was there, or, if the step has not filled it before, for the
// release of what the step before left there.
Status validate_area(const Plan& plan, Area area, uint64_t capacity_bytes, const std::vector<MoveId>& releases) {
  std::vector<MoveId> takers;
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    if (move.area != area) continue;
    if (move.place_bytes > capacity_bytes || move.place_offset_bytes > capacity_bytes - move.place_bytes) {
      return broken(plan, id,
                    text("fills ", move.place_bytes, " B from ", move.place_offset_bytes, " of ", name_of(area),
                         ", which has ", capacity_bytes));
    }
    takers.push_back(id);
  }
  // Bytes of `taker`'s place that were filled last by `other`, going back from it, in this step or the one before.
  for (size_t i = 0; i < takers.size(); ++i) {
    const Move& move = plan.moves[takers[i]];
    struct Stretch {
      uint64_t begin, end;
    };
    std::vector<Stretch> unseen = {{move.place_offset_bytes, move.place_offset_bytes + move.place_bytes}};
    for (size_t back = 1; back <= takers.size() && !unseen.empty(); ++back) {
      const bool in_step_before = back > i;
      const MoveId other_id = takers[(i + takers.size() - back) % takers.size()];
      const Move& other = plan.moves[other_id];
      const uint64_t begin = other.place_offset_bytes, end = begin + other.place_bytes;
      std::vector<Stretch> left;
      bool meets = false;
      for (const Stretch& stretch : unseen) {
        if (end <= stretch.begin || begin >= stretch.end) {
          left.push_back(stretch);
          continue;
        }
        meets = true;
        if (stretch.begin < begin) left.push_back({stretch.begin, begin});
        if (end < stretch.end) left.push_back({end, stretch.end});
      }
      unseen = std::move(left);
      if (!meets) continue;
      if (!names(in_step_before ? move.after_previous : move.after, releases[other_id])) {
        return broken(plan, takers[i],
                      text("fills a place of ", name_of(area), " without waiting for what move ", other_id,
                           in_step_before ? " of the step before" : "", " has there"));
      }
    }
  }
  return Status();
}

// What the regions and lines of a plan must have room for.
Status validate_memory(const Plan& plan, const std::vector<MoveId>& releases) {
  auto pieces = [&](Pool pool) { return plan.pool_pieces[static_cast<size_t>(pool)]; };
  uint64_t weights = 0, states = 0, device_weights = 0, device_states = 0, device_gradients = 0;
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    const Tile& shape = plan.tiles[tile];
    const Placement& placement = plan.placements[tile];
    const bool is_device = placement.weight_on_device();
    if (is_device != plan.rests_on_device(shape.unit) || (is_device && placement.state_in_host()) ||
        (placement.state_on_device() && !is_device)) {
      return Status(Code::kUsage, text("plan: tile ", tile, " rests on the device without the rest of its unit"));
    }
    if (placement.weight_in_host()) weights += shape.weight_bytes;
    if (placement.state_in_host()) states += shape.state_bytes;
    if (is_device) device_weights += shape.weight_bytes;
    if (placement.state_on_device()) device_states += shape.state_bytes;
    if (placement.state_on_device() && shape.first_element == 0) {
      device_gradients += resting_gradient_bytes(plan.tiles, shape.unit);
    }
  }
  const struct {
    Region region;
    const char* name;
    uint64_t bytes;
  } needs[] = {{Region::windows, "windows", pieces(Pool::window) * plan.tiles.slot_bytes_max()},
               {Region::gradients, "gradients", pieces(Pool::gradient) * plan.tiles.gradient_bytes_max()},
               {Region::fetched_gradients, "fetched gradients",
                pieces(Pool::fetched_gradient) * plan.tiles.gradient_bytes_max()},
               {Region::sums, "sums", plan.sums.bytes},
               {Region::resting_weights, "resting weights", weights},
               {Region::resting_states, "resting states", states},
               {Region::device_resting_weights, "weights that rest on the device", device_weights},
               {Region::device_resting_states, "states that rest on the device", device_states},
               {Region::device_resting_gradients, "gradients that rest on the device", device_gradients}};
  for (const auto& need : needs) {
    const uint64_t there = run_of(plan.budget_lines, need.region).bytes;
    if (there < need.bytes) {
      return Status(Code::kUsage, text("plan: ", need.name, " take ", need.bytes, " B, and have ", there));
    }
  }
  auto line = [&](Tier tier, const char* name) {
    uint64_t bytes = 0;
    for (const BudgetLine& of : plan.budget_lines) bytes += of.tier == tier && of.name == name ? of.bytes : 0;
    return bytes;
  };
  PENSTOCK_TRY(validate_area(plan, Area::host_units, run_of(plan.budget_lines, Region::units).bytes, releases));
  PENSTOCK_TRY(validate_area(plan, Area::offloaded_activations,
                             run_of(plan.budget_lines, Region::offloaded_activations).bytes, releases));
  auto region = [&](Region of) { return run_of(plan.budget_lines, of).bytes; };
  PENSTOCK_TRY(validate_area(plan, Area::device_units, region(Region::device_units), releases));
  PENSTOCK_TRY(validate_area(plan, Area::device_gradients, region(Region::device_gradients), releases));
  PENSTOCK_TRY(validate_area(plan, Area::downloaded_gradients, region(Region::downloaded_gradients), releases));
  PENSTOCK_TRY(validate_area(plan, Area::spilled_activations, line(Tier::nvme, "spilled activations"), releases));
  return validate_area(plan, Area::activations, line(plan.on_device ? Tier::device : Tier::host, "activations"),
                       releases);
}

}  // namespace

Status validate(const Plan& plan) {
  PENSTOCK_TRY(validate_waits(plan));
  PENSTOCK_TRY_ASSIGN(releases, releases_of(plan));
  return validate_memory(plan, releases);
}

}  // namespace penstock
