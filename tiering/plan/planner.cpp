#include "tiering/plan/planner.h"

#include <algorithm>
#include <cmath>

#include "tiering/budget.h"
#include "tiering/plan/plan_builder.h"

namespace penstock {
namespace {

constexpr uint32_t kWindowTilesPerDrive = 12;  // reads, updates and writes in flight: 3 lanes, four tiles each
constexpr uint32_t kWindowTilesLeast = 3;      // one being read, one updated, one written
constexpr uint32_t kBacklogTilesLeast = 2;
constexpr uint64_t kBookBytesPerMove = 400;
// Enough in flight for a drive, and little enough that all windows together stay in a CPU's cache: where a drive's
// bytes pass through the CPU, it is a fifth slower once they come from memory.
constexpr uint64_t kSlotBytesUsual = 3 * kMiB / 2;
// Larger tiles only where there would be more than this many, for each costs decisions and a line of the table.
constexpr uint64_t kSlotBytesMost = 16 * kMiB;
constexpr uint64_t kTilesUsual = 16 * 1024;
// Offloaded activations on their way: one being made or used, one moving, and one more of each.
constexpr uint64_t kActivationsUnderWay = 4;

bool spills(const PlanRequest& request, const PlanSizes& sizes, uint32_t tiles) {
  return request.workload.clipping.on && sizes.retained_tiles < tiles;
}

// The plan's moves and their state in two open steps, and a tile's lines in the store's tables.
uint64_t book_bytes_per_tile(const PlanRequest& request) {
  return (request.workload.clipping.on ? 17 : 8) * kBookBytesPerMove;
}

uint32_t share_of(std::optional<double> share, uint32_t tiles) {
  return share ? static_cast<uint32_t>(std::lround(std::clamp(*share, 0.0, 1.0) * tiles)) : 0;
}

// What suits the drives first; fewer only where memory is short.
std::vector<uint32_t> windows_worth_trying(const MachineProfile& machine) {
  std::vector<uint32_t> windows;
  const auto drives = static_cast<uint32_t>(std::max<size_t>(1, machine.drives.size()));
  for (uint32_t count = drives * kWindowTilesPerDrive; count > kWindowTilesLeast; count /= 2) windows.push_back(count);
  windows.push_back(kWindowTilesLeast);
  return windows;
}

// Takes what must be there: windows, backlog, units under way. What is left of the budget may hold resting state.
Status take_working_memory(const PlanRequest& request, const TileMap& tiles, const PlanSizes& sizes, Budget& host,
                           Budget& device) {
  if (request.process_bytes > 0) PENSTOCK_TRY(host.take("program", request.process_bytes));
  PENSTOCK_TRY(host.take("plan and tables", tiles.size() * book_bytes_per_tile(request)));
  PENSTOCK_TRY(host.take("tile window", sizes.window_tiles * tiles.slot_bytes_max()));
  PENSTOCK_TRY(host.take("gradient backlog", sizes.backlog_tiles * tiles.gradient_bytes_max()));
  if (sizes.returned_tiles > 0) {
    PENSTOCK_TRY(host.take("returned gradients", sizes.returned_tiles * tiles.gradient_bytes_max()));
  }
  if (sizes.accumulated_bytes > 0) PENSTOCK_TRY(host.take("accumulated gradients", sizes.accumulated_bytes));
  if (request.workload.pass == Pass::training) {
    PENSTOCK_TRY(host.take("units under way", sizes.unit_host_bytes));
    if (sizes.unit_device_bytes > 0) PENSTOCK_TRY(device.take("units under way", sizes.unit_device_bytes));
    if (sizes.gradient_device_bytes > 0) PENSTOCK_TRY(device.take("gradients under way", sizes.gradient_device_bytes));
    Budget& computing = request.machine.devices > 0 ? device : host;
    if (sizes.activation_device_bytes > 0) PENSTOCK_TRY(computing.take("activations", sizes.activation_device_bytes));
    if (sizes.computing_bytes > 0) PENSTOCK_TRY(computing.take("unit being computed", sizes.computing_bytes));
    if (sizes.activation_host_bytes > 0) PENSTOCK_TRY(host.take("offloaded activations", sizes.activation_host_bytes));
  }
  return Status();
}

// A unit's elements, and those that it borrows.
uint64_t elements_used(const Workload& workload, const Unit& unit) {
  return unit.elements + (unit.also_uses ? workload.units[*unit.also_uses].elements : 0);
}

void size_units(const PlanRequest& request, PlanSizes& sizes) {
  const Workload& workload = request.workload;
  uint64_t used = 0, trained = 0;
  for (const Unit& unit : workload.units) {
    used = std::max(used, elements_used(workload, unit));
    if (unit.trainable) trained = std::max(trained, unit.elements);
  }
  // One unit is used while the next arrives; backward's copies stay for their update besides.
  const uint64_t unit = round_up(used * bytes_of(workload.form.weight), kSegmentAlignmentBytes) +
                        (used > 0 ? 2 * kSegmentAlignmentBytes : 0);
  sizes.unit_host_bytes = 4 * unit;
  if (request.machine.devices == 0) return;
  const uint64_t ranks = std::max(1u, workload.ranks);
  sizes.unit_device_bytes = 2 * unit * ranks;
  // A whole unit's gradient: one on its way to the host, and what the next is added up in.
  const uint64_t sum = workload.micro_batches > 1 ? 4 : 0;
  sizes.gradient_device_bytes = trained * ranks * (bytes_of(workload.form.gradient) + sum);
}

void size_activations(const PlanRequest& request, ActivationChoice choice, PlanSizes& sizes) {
  sizes.activations = choice;
  uint64_t kept = 0, most = 0, whole = 0, boundary = 0;
  for (const Unit& unit : request.workload.units) {
    const uint64_t bytes = recomputes(choice) ? unit.boundary_bytes : unit.activation_bytes;
    kept += bytes;
    most = std::max(most, bytes);
    whole = std::max(whole, unit.activation_bytes);
    boundary = std::max(boundary, unit.boundary_bytes);
  }
  sizes.activation_device_bytes = kept * sizes.micro_batch_group;
  if (offloads(choice)) {
    sizes.activation_host_bytes = sizes.activation_device_bytes;
    sizes.activation_device_bytes = std::min(sizes.activation_device_bytes, most * kActivationsUnderWay);
  }
  // Between two units lie every micro-batch's hidden state and its gradient; recomputation makes one unit's whole.
  sizes.computing_bytes = 2 * boundary * sizes.micro_batch_group + (recomputes(choice) ? whole : 0);
}

// The fp32 sums that are under way at the same time.
uint64_t accumulated_bytes(const Workload& workload, uint32_t group) {
  uint64_t added_up = 0, reused = 0;  // units
  for (const Unit& unit : workload.units) {
    added_up += unit.trainable && workload.micro_batches * unit.uses > 1;
    reused += unit.trainable && unit.uses > 1;
  }
  // Vertical: all micro-batches pass through a unit before the next; two, so that one may still be handed on. What is
  // reused begins at its last use in forward and ends at its first.
  const bool vertical = group >= workload.micro_batches;
  const uint64_t sums = vertical ? reused + std::min<uint64_t>(added_up - reused, 2) : added_up;
  return accumulator_bytes(workload) * sums;
}

Status take_slots(const PlanRequest& request, const TileMap& tiles, uint32_t spilled_tiles, Budget& nvme) {
  uint64_t slots = 0;
  for (const Tile& tile : tiles.tiles()) slots += tile.slot_bytes() * slots_per_tile(request);
  PENSTOCK_TRY(nvme.take("slots", slots));
  return spilled_tiles > 0 ? nvme.take("spilled gradients", spilled_tiles * tiles.gradient_bytes_max()) : Status();
}

struct Fit {
  TileMap tiles;
  PlanSizes sizes;
  Budget host, device, nvme;
};

// The working memory that the choices ask for, and resting state in what is then left of the host budget.
Result<Fit> fit(const PlanRequest& request, const PlanChoices& choices) {
  Fit fit{TileMap(request.workload, *choices.tile_elements), PlanSizes{},
          Budget(Tier::host, request.budgets.host_bytes), Budget(Tier::device, request.budgets.device_bytes),
          Budget(Tier::nvme, request.budgets.nvme_bytes)};
  const TileMap& tiles = fit.tiles;
  PlanSizes& sizes = fit.sizes;
  sizes.window_tiles = choices.window_tiles.value_or(windows_worth_trying(request.machine).front());
  // Gradients that wait for their tile's state.
  sizes.backlog_tiles = std::max(kBacklogTilesLeast, sizes.window_tiles * 2 / 3);
  sizes.micro_batch_group = std::clamp<uint32_t>(choices.micro_batch_group.value_or(request.workload.micro_batches), 1,
                                                 std::max(1u, request.workload.micro_batches));
  if (request.workload.pass == Pass::training) {
    size_units(request, sizes);
    size_activations(request, choices.activations.value_or(ActivationChoice::recompute), sizes);
  }
  sizes.accumulated_bytes = accumulated_bytes(request.workload, sizes.micro_batch_group);

  std::vector<uint64_t> weights, states;  // in update order
  for (uint32_t tile : update_order(request.workload, tiles)) {
    weights.push_back(tiles[tile].weight_bytes);
    states.push_back(tiles[tile].state_bytes);
  }
  const uint32_t count = static_cast<uint32_t>(states.size());
  const bool clips = request.workload.clipping.on;
  sizes.retained_tiles = clips ? share_of(choices.retained_host_share, count) : 0;
  sizes.host_state_tiles = share_of(choices.host_state_share, count);
  sizes.host_weight_tiles = choices.weights == WeightRest::host ? count : sizes.host_state_tiles;
  if (spills(request, sizes, count)) sizes.returned_tiles = sizes.backlog_tiles;
  PENSTOCK_TRY(take_working_memory(request, tiles, sizes, fit.host, fit.device));

  // What a byte of host memory saves on the drives and step: a retained gradient up to two, a weight one (two in
  // training), a state one. So choices first, then the rest in that order.
  const uint64_t gradient_piece = std::max<uint64_t>(1, tiles.gradient_bytes_max());
  auto reserved = [&] {
    return resting_bytes(weights, spread_evenly(sizes.host_weight_tiles, count)) +
           resting_bytes(states, resting_states(sizes, count)) +
           (sizes.retained_tiles + sizes.leaving_tiles) * gradient_piece;
  };
  auto grow = [&](uint32_t& chosen) {
    const uint64_t most = fit.host.free_bytes();
    uint32_t low = chosen, high = count;  // the most tiles that fit: more tiles never take less
    while (low < high) {
      chosen = low + (high - low + 1) / 2;
      (reserved() <= most ? low : high) = reserved() <= most ? chosen : chosen - 1;
    }
    chosen = low;
  };
  if (clips && !choices.retained_host_share) grow(sizes.retained_tiles);
  if (spills(request, sizes, count)) {
    // Gradients on their way to the drives: as many as fill a lane, with the backlog; in free memory, or instead of
    // some that would stay.
    const uint64_t fill_lane = tiles_a_lane(sizes) * tiles.slot_bytes_max() / gradient_piece;
    const uint64_t free_bytes = fit.host.free_bytes() - std::min(fit.host.free_bytes(), reserved());
    const uint32_t of_retained = choices.retained_host_share ? 0 : sizes.retained_tiles;
    sizes.leaving_tiles = static_cast<uint32_t>(std::min(fill_lane - std::min<uint64_t>(fill_lane, sizes.backlog_tiles),
                                                         of_retained + free_bytes / gradient_piece));
    sizes.retained_tiles -= std::min(of_retained, sizes.leaving_tiles);
  } else {
    sizes.returned_tiles = 0;
  }
  if (choices.weights == WeightRest::automatic) grow(sizes.host_weight_tiles);
  if (!choices.host_state_share && sizes.host_weight_tiles == count) grow(sizes.host_state_tiles);

  auto take = [&](const char* name, uint64_t bytes) { return bytes == 0 ? Status() : fit.host.take(name, bytes); };
  PENSTOCK_TRY(take("resting weights", resting_bytes(weights, spread_evenly(sizes.host_weight_tiles, count))));
  PENSTOCK_TRY(take("resting state", resting_bytes(states, resting_states(sizes, count))));
  PENSTOCK_TRY(take("retained gradients", clips ? sizes.retained_tiles * gradient_piece : 0));
  PENSTOCK_TRY(take("leaving gradients", sizes.leaving_tiles * gradient_piece));
  PENSTOCK_TRY(take_slots(request, tiles, clips ? count - sizes.retained_tiles : 0, fit.nvme));
  return fit;
}

std::vector<BudgetLine> lines_of(const Fit& fit) {
  std::vector<BudgetLine> lines;
  for (const Budget* budget : {&fit.device, &fit.host, &fit.nvme}) {
    for (const Budget::Line& line : budget->lines()) lines.push_back({budget->tier(), line.name, line.bytes});
  }
  return lines;
}

Status smallest_refused(const PlanRequest& request, const Status& last) {
  return last.within(text("plan for ", request.workload.elements(), " parameters"));
}

}  // namespace

uint32_t slots_per_tile(const PlanRequest& request) {
  if (request.slots != 0) return request.slots;
  bool relaxed = request.durability.value_or(Durability{}).kind != Durability::Kind::step;
  return relaxed && request.workload.clipping.on ? 3 : 2;
}

Result<std::vector<BudgetLine>> budget_lines(const PlanRequest& request, const PlanChoices& choices) {
  PENSTOCK_TRY(validate(request.workload));
  PENSTOCK_TRY_ASSIGN(fitted, fit(request, choices));
  return lines_of(fitted);
}

Result<Plan> make_plan_as_chosen(const PlanRequest& request, const PlanChoices& choices) {
  PENSTOCK_TRY(validate(request.workload));
  CHECK(choices.tile_elements.has_value());
  PENSTOCK_TRY_ASSIGN(fitted, fit(request, choices));
  std::vector<BudgetLine> lines = lines_of(fitted);
  Plan plan = build_plan(request.workload, request.machine, std::move(fitted.tiles), fitted.sizes);
  plan.durability = request.durability.value_or(Durability{});
  plan.budget_lines = std::move(lines);
  return plan;
}

std::vector<uint64_t> tile_sizes_worth_trying(const PlanRequest& request) {
  if (request.choices.tile_elements) return {*request.choices.tile_elements};
  const TileMap smallest(request.workload, kBlockElements);
  const uint64_t bytes_per_block = std::max<uint64_t>(1, smallest.slot_bytes_max());
  const uint64_t all = request.workload.elements() / kBlockElements * bytes_per_block;
  const uint64_t slot_bytes = std::clamp(all / kTilesUsual, kSlotBytesUsual, kSlotBytesMost);
  const uint64_t windows = request.choices.window_tiles.value_or(windows_worth_trying(request.machine).front());
  // A window's tile and its gradient.
  const uint64_t bytes_per_window_block = windows * (bytes_per_block + smallest.gradient_bytes_max());
  std::vector<uint64_t> sizes;
  for (uint64_t blocks = std::max<uint64_t>(1, slot_bytes / bytes_per_block); blocks >= 1; blocks /= 2) {
    sizes.push_back(blocks * kBlockElements);
    const uint64_t saved = (blocks - blocks / 2) * bytes_per_window_block;
    if (smallest.size() / blocks * book_bytes_per_tile(request) > saved) break;
  }
  return sizes;
}

Result<Plan> make_plan(const PlanRequest& request) {
  PENSTOCK_TRY(validate(request.workload));
  if (request.workload.units.empty()) return Status(Code::kUsage, "plan: the model has no units");
  if (request.choices.window_tiles == 0u) return Status(Code::kUsage, "plan: no window for a tile", "give one");
  if (request.durability && request.durability->steps == 0) {
    return Status(Code::kUsage, "plan: durability every:0", "give every:1 or more");
  }
  const std::vector<uint64_t> sizes = tile_sizes_worth_trying(request);
  const std::vector<uint32_t> windows = request.choices.window_tiles
                                            ? std::vector<uint32_t>{*request.choices.window_tiles}
                                            : windows_worth_trying(request.machine);
  auto with = [&](uint32_t window, uint64_t tile_elements) {
    PlanChoices choices = request.choices;
    choices.tile_elements = tile_elements;
    choices.window_tiles = window;
    return choices;
  };
  // Where nothing fits in the fewest windows, those between need not be tried.
  auto refused_in_fewest = [&] {
    Status refusal;
    for (uint64_t tile_elements : sizes) {
      refusal = budget_lines(request, with(windows.back(), tile_elements)).status();
      if (refusal.ok()) break;
    }
    return refusal;
  };
  Status refusal;
  for (uint32_t window : windows) {
    for (uint64_t tile_elements : sizes) {
      Result<Plan> plan = make_plan_as_chosen(request, with(window, tile_elements));
      if (plan.ok()) return plan;
      if (refusal.ok()) {
        const Status least = refused_in_fewest();
        if (!least.ok()) return smallest_refused(request, least);
      }
      refusal = plan.status();
    }
  }
  return smallest_refused(request, refusal);
}

}  // namespace penstock
