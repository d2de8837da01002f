#include "tiering/planner.h"

#include <algorithm>
#include <cmath>

#include "tiering/budget.h"
#include "tiering/plan_builder.h"

namespace penstock {
namespace {

constexpr uint32_t kWindowTiles = 12;      // reads, updates and writes in flight: 3 lanes, four tiles each
constexpr uint32_t kWindowTilesLeast = 3;  // one being read, one updated, one written
constexpr uint32_t kBacklogTiles = 8;      // gradients that wait for their tile's state
constexpr uint32_t kBacklogTilesLeast = 2;
constexpr uint32_t kReturnedTiles = 4;
constexpr uint64_t kSlotBytesMost = 16 * kMiB;
constexpr uint64_t kSlotBytesUsual = 6 * kMiB;

bool spills(const PlanRequest& request, const PlanSizes& sizes, uint32_t tiles) {
  return request.workload.clipping.on && sizes.retained_tiles < tiles;
}

uint32_t share_of(std::optional<double> share, uint32_t tiles) {
  return share ? static_cast<uint32_t>(std::lround(std::clamp(*share, 0.0, 1.0) * tiles)) : 0;
}

// Takes what must be there: windows, backlog, units under way. What is left of the budget may hold resting state.
Status take_working_memory(const PlanRequest& request, const TileMap& tiles, const PlanSizes& sizes, Budget& host,
                           Budget& device) {
  if (request.process_bytes > 0) PENSTOCK_TRY(host.take("program", request.process_bytes));
  PENSTOCK_TRY(host.take("tile window", sizes.window_tiles * tiles.slot_bytes_max()));
  PENSTOCK_TRY(host.take("gradient backlog", sizes.backlog_tiles * tiles.gradient_bytes_max()));
  if (spills(request, sizes, tiles.size())) {
    PENSTOCK_TRY(host.take("returned gradients", sizes.returned_tiles * tiles.gradient_bytes_max()));
  }
  if (sizes.accumulated_bytes > 0) PENSTOCK_TRY(host.take("accumulated gradients", sizes.accumulated_bytes));
  if (request.workload.pass == Pass::training) {
    PENSTOCK_TRY(host.take("units under way", sizes.unit_host_bytes));
    if (sizes.unit_device_bytes > 0) PENSTOCK_TRY(device.take("units under way", sizes.unit_device_bytes));
    if (sizes.activation_device_bytes > 0) {
      Budget& where = request.machine.devices > 0 ? device : host;
      PENSTOCK_TRY(where.take("activations", sizes.activation_device_bytes));
    }
    if (sizes.activation_host_bytes > 0) PENSTOCK_TRY(host.take("offloaded activations", sizes.activation_host_bytes));
  }
  return Status();
}

uint64_t largest_unit_bytes(const Workload& workload) {
  uint64_t most = 0;
  for (const Unit& unit : workload.units) most = std::max(most, unit.elements * bytes_of(workload.form.weight));
  return round_up(most, kSegmentAlignmentBytes);
}

void size_training(const PlanRequest& request, const PlanChoices& choices, PlanSizes& sizes) {
  const Workload& workload = request.workload;
  sizes.activations = choices.activations.value_or(ActivationChoice::recompute);
  // One unit is used while the next arrives; backward's copies stay for their update besides.
  uint64_t unit = largest_unit_bytes(workload);
  sizes.unit_host_bytes = 4 * unit;
  sizes.unit_device_bytes = request.machine.devices > 0 ? 2 * unit * std::max(1u, workload.ranks) : 0;
  uint64_t kept = 0, most = 0;
  for (const Unit& u : workload.units) {
    uint64_t bytes = sizes.activations == ActivationChoice::recompute ? u.boundary_bytes : u.activation_bytes;
    kept += bytes;
    most = std::max(most, bytes);
  }
  if (sizes.activations == ActivationChoice::offload) {
    sizes.activation_device_bytes = most * 3 * sizes.micro_batch_group;
    sizes.activation_host_bytes = kept * workload.micro_batches;
  } else {
    sizes.activation_device_bytes = kept * workload.micro_batches;
  }
}

// The fp32 sums that are under way at the same time.
uint64_t accumulated_bytes(const Workload& workload, uint32_t group) {
  uint64_t units = 0;
  bool reused = false;
  for (const Unit& unit : workload.units) {
    units += unit.trainable && workload.micro_batches * unit.uses > 1;
    reused |= unit.trainable && unit.uses > 1;
  }
  // Vertical: all micro-batches pass through a unit before the next; two, so that one may still be handed on.
  bool vertical = group >= workload.micro_batches && !reused;
  return accumulator_bytes(workload) * (vertical ? std::min<uint64_t>(units, 2) : units);
}

struct Fit {
  TileMap tiles;
  PlanSizes sizes;
  Budget host, device;
};

// The working memory that the choices ask for, and resting state in what is then left of the host budget.
Result<Fit> fit(const PlanRequest& request, const PlanChoices& choices) {
  Fit fit{TileMap(request.workload, *choices.tile_elements), PlanSizes{},
          Budget(Tier::host, request.budgets.host_bytes), Budget(Tier::device, request.budgets.device_bytes)};
  const TileMap& tiles = fit.tiles;
  PlanSizes& sizes = fit.sizes;
  sizes.window_tiles = choices.window_tiles.value_or(kWindowTiles);
  sizes.backlog_tiles = sizes.window_tiles >= kWindowTiles ? kBacklogTiles : kBacklogTilesLeast;
  sizes.returned_tiles = kReturnedTiles;
  sizes.micro_batch_group = std::clamp<uint32_t>(choices.micro_batch_group.value_or(request.workload.micro_batches), 1,
                                                 std::max(1u, request.workload.micro_batches));
  if (request.workload.pass == Pass::training) size_training(request, choices, sizes);
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
  PENSTOCK_TRY(take_working_memory(request, tiles, sizes, fit.host, fit.device));

  // What a byte of host memory saves on the drives and step: a retained gradient up to two, a weight one (two in
  // training), a state one. So choices first, then the rest in that order.
  const uint64_t gradient_piece = std::max<uint64_t>(1, tiles.gradient_bytes_max());
  auto reserved = [&] {
    return resting_bytes(weights, spread_evenly(sizes.host_weight_tiles, count)) +
           resting_bytes(states, resting_states(sizes, count)) + sizes.retained_tiles * gradient_piece;
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
  if (choices.weights == WeightRest::automatic) grow(sizes.host_weight_tiles);
  if (!choices.host_state_share && sizes.host_weight_tiles == count) grow(sizes.host_state_tiles);

  auto take = [&](const char* name, uint64_t bytes) { return bytes == 0 ? Status() : fit.host.take(name, bytes); };
  PENSTOCK_TRY(take("resting weights", resting_bytes(weights, spread_evenly(sizes.host_weight_tiles, count))));
  PENSTOCK_TRY(take("resting state", resting_bytes(states, resting_states(sizes, count))));
  PENSTOCK_TRY(take("retained gradients", clips ? sizes.retained_tiles * gradient_piece : 0));
  return fit;
}

Status smallest_refused(const PlanRequest& request, const Status& last) {
  return last.within(text("plan for ", request.workload.elements(), " parameters"));
}

}  // namespace

uint32_t slots_per_tile(const PlanRequest& request) {
  if (request.slots != 0) return request.slots;
  bool relaxed = request.durability.kind != Durability::Kind::step;
  return relaxed && request.workload.clipping.on ? 3 : 2;
}

uint64_t store_bytes(const PlanRequest& request, const Plan& plan) {
  uint64_t sum = 0;
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    sum += plan.tiles[tile].slot_bytes() * slots_per_tile(request);
    if (plan.of_tile[tile].spill != kNoMove) sum += plan.tiles[tile].gradient_bytes;
  }
  return sum;
}

Result<Plan> make_plan_as_chosen(const PlanRequest& request, const PlanChoices& choices) {
  PENSTOCK_TRY(validate(request.workload.form));
  CHECK(choices.tile_elements.has_value());
  PENSTOCK_TRY_ASSIGN(fitted, fit(request, choices));
  Plan plan = build_plan(request.workload, request.machine, std::move(fitted.tiles), fitted.sizes);
  plan.durability = request.durability;
  for (const Budget* budget : {&fitted.host, &fitted.device}) {
    for (const Budget::Line& line : budget->lines())
      plan.budget_lines.push_back({budget->tier(), line.name, line.bytes});
  }
  uint64_t on_nvme = store_bytes(request, plan);
  plan.budget_lines.push_back({Tier::nvme, "slots", on_nvme});
  if (on_nvme > request.budgets.nvme_bytes) {
    return Status(Code::kDoesNotFit,
                  text("nvme budget: slots need ", on_nvme, " B (", bytes_text(on_nvme), "), the budget is ",
                       request.budgets.nvme_bytes, " B"),
                  "raise --budget nvme=, or use `space: single`");
  }
  return plan;
}

Result<Plan> make_plan(const PlanRequest& request) {
  PENSTOCK_TRY(validate(request.workload.form));
  if (request.workload.units.empty()) return Status(Code::kUsage, "plan: the model has no units");
  std::vector<uint64_t> sizes;
  uint64_t slot_bytes_per_block = TileMap(request.workload, kBlockElements).slot_bytes_max();
  if (request.choices.tile_elements) {
    sizes = {*request.choices.tile_elements};
  } else {
    // The usual size first; smaller ones only where memory is short.
    uint64_t blocks = std::max<uint64_t>(1, kSlotBytesUsual / std::max<uint64_t>(1, slot_bytes_per_block));
    for (; blocks >= 1; blocks /= 2) sizes.push_back(blocks * kBlockElements);
  }
  std::vector<uint32_t> windows = request.choices.window_tiles
                                      ? std::vector<uint32_t>{*request.choices.window_tiles}
                                      : std::vector<uint32_t>{kWindowTiles, kWindowTiles / 2, kWindowTilesLeast};
  Status refusal;
  for (uint32_t window : windows) {
    for (uint64_t tile_elements : sizes) {
      PlanChoices choices = request.choices;
      choices.tile_elements = tile_elements;
      choices.window_tiles = window;
      Result<Plan> plan = make_plan_as_chosen(request, choices);
      if (plan.ok()) return plan;
      refusal = plan.status();
    }
  }
  return smallest_refused(request, refusal);
}

}  // namespace penstock
