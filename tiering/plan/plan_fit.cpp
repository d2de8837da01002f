#include "tiering/plan/plan_fit.h"

#include <algorithm>

#include "tiering/budget.h"
#include "tiering/plan/rank_memory.h"

namespace penstock {
namespace {

constexpr uint32_t kLaneTilesPerDrive = 4;  // in flight: enough for any drive, and few before what is urgent
constexpr uint32_t kWindowTilesPerDrive = 3 * kLaneTilesPerDrive;  // of reads, updates and writes
constexpr uint32_t kWindowTilesLeast = 3;                          // one being read, one updated, one written
constexpr uint32_t kBacklogTilesLeast = 2;
constexpr uint64_t kBookBytesPerMove = 400;
// Offloaded activations on their way: one being made or used, one moving, and one more of each.
constexpr uint64_t kActivationsUnderWay = 4;
// One use is computed, the weights of the next arrive, and backward's copy of the one before stays for its update.
constexpr size_t kUsesUnderWay = 3;

uint32_t drives_of(const MachineProfile& machine) {
  return static_cast<uint32_t>(std::max<size_t>(1, machine.drives.size()));
}

uint32_t count_of(const std::vector<TileId>& tiles) { return static_cast<uint32_t>(tiles.size()); }

// What every attempt at one request and tile size starts from.
struct Ground {
  Ground(const PlanRequest& from, uint64_t tile_elements, std::vector<bool> units_on_device)
      : request(from),
        tiles(from.workload, tile_elements),
        on_device(std::move(units_on_device)),
        order(update_order(from.workload, tiles)),
        ranges(static_cast<uint32_t>(weight_ranges(from.workload, tiles, on_device).size())),
        placed_first(ranges_placed_first(from.workload, tiles, on_device)),
        ranks(rank_memory(from)) {
    std::erase_if(order, [this](TileId tile) { return rests_on_device(tiles[tile].unit); });
  }

  const PlanRequest& request;
  TileMap tiles;
  std::vector<bool> on_device;  // by unit: rests there
  std::vector<TileId> order;    // without tiles that rest there
  uint32_t ranges;              // weight_ranges()
  uint32_t placed_first;        // of them: ranges_placed_first()
  RankMemoryBytes ranks;

  bool rests_on_device(uint32_t unit) const { return penstock::rests_on_device(on_device, unit); }
  bool clips() const { return request.workload.clipping.may_take_back(); }
  bool trains() const { return request.workload.scope == StepScope::training; }
  // Plan::on_device, of a training pass.
  bool copies_to_device() const { return request.machine.copies_to_device(); }
  bool spills(const PlanSizes& sizes) const { return clips() && sizes.retained_tiles < count_of(order); }
};

// The one account of what a plan of these sizes takes.
std::vector<BudgetLine> lines_of(const Ground& ground, const PlanSizes& sizes) {
  const TileMap& tiles = ground.tiles;
  std::vector<BudgetLine> lines;
  auto take = [&](Tier tier, const char* name, uint64_t bytes, Region region = Region::none) {
    if (bytes > 0) lines.push_back({tier, name, bytes, region});
  };
  auto host = [&](const char* name, uint64_t bytes, Region region = Region::none) {
    take(Tier::host, name, bytes, region);
  };
  const Tier computes = ground.copies_to_device() ? Tier::device : Tier::host;
  take(Tier::device, "units under way", sizes.device_units_bytes, Region::device_units);
  take(Tier::device, "forward passes within steps", sizes.device_forward_units_bytes, Region::device_forward_units);
  take(Tier::device, "gradients under way", sizes.device_gradients_bytes, Region::device_gradients);
  const Region activations = !sizes.stores_activations  ? Region::none
                             : computes == Tier::device ? Region::device_activations
                                                        : Region::activations;
  if (computes == Tier::device) take(computes, "activations", sizes.kept_bytes + sizes.moving_bytes, activations);
  take(computes, "unit being computed", sizes.computing_bytes);

  uint64_t weights = 0, states = 0, slots = 0, spilled = 0, device_weights = 0, device_states = 0, device_gradients = 0;
  const std::vector<Placement> placements = place_tiles(ground.request.workload, tiles, sizes);
  for (TileId tile = 0; tile < tiles.size(); ++tile) {
    weights += placements[tile].weight_in_host() ? tiles[tile].weight_bytes : 0;
    states += placements[tile].state_in_host() ? tiles[tile].state_bytes : 0;
    device_weights += placements[tile].weight_on_device() ? tiles[tile].weight_bytes : 0;
    device_states += placements[tile].state_on_device() ? tiles[tile].state_bytes : 0;
    if (placements[tile].state_on_device() && tiles[tile].first_element == 0) {
      device_gradients += resting_gradient_bytes(tiles, tiles[tile].unit);
    }
    const bool is_written = ground.request.workload.units[tiles[tile].unit].trainable;
    slots += tiles[tile].slot_bytes() * (is_written ? slots_per_tile(ground.request) : 1);
  }
  take(Tier::device, "resting weights", device_weights, Region::device_resting_weights);
  take(Tier::device, "resting state", device_states, Region::device_resting_states);
  take(Tier::device, "resting gradients", device_gradients, Region::device_resting_gradients);
  if (ground.clips()) spilled = (count_of(ground.order) - sizes.retained_tiles) * tiles.gradient_bytes_max();
  host("program", ground.request.process_bytes);
  host("plan and tables", tiles.size() * book_bytes_per_tile(ground.request));
  host("tile window", sizes.window_tiles * tiles.slot_bytes_max(), Region::windows);
  host("tiles ahead of a verdict", sizes.ahead_window_tiles * tiles.slot_bytes_max(), Region::windows);
  host("gradient backlog", sizes.backlog_tiles * tiles.gradient_bytes_max(), Region::gradients);
  host("deferred gradients", sizes.deferred_tiles * tiles.gradient_bytes_max(), Region::gradients);
  host("leaving gradients", sizes.leaving_tiles * tiles.gradient_bytes_max(), Region::gradients);
  host("retained gradients", sizes.retained_tiles * tiles.gradient_bytes_max(), Region::gradients);
  host("fetched gradients", sizes.fetched_gradient_tiles * tiles.gradient_bytes_max(), Region::fetched_gradients);
  host("accumulated gradients", sizes.sums.bytes, Region::sums);
  host("gathered weights", ground.ranks.gathered_bytes);
  host("gradients of all ranks", ground.ranks.gradient_bytes);
  host("codes of all ranks", ground.ranks.coded_bytes);
  host("units under way", sizes.host_units_bytes, Region::units);
  host("forward passes within steps", sizes.forward_units_bytes, Region::forward_units);
  host("downloaded gradients", sizes.downloaded_bytes, Region::downloaded_gradients);
  if (computes == Tier::host) host("activations", sizes.kept_bytes + sizes.moving_bytes, activations);
  host("offloaded activations", sizes.offloaded_bytes + sizes.passing_bytes, Region::offloaded_activations);
  host("resting weights", weights, Region::resting_weights);
  host("resting state", states, Region::resting_states);
  take(Tier::nvme, "slots", slots);
  take(Tier::nvme, "spilled gradients", spilled);
  take(Tier::nvme, "spilled activations", sizes.spilled_bytes);
  lay_out(lines);
  return lines;
}

uint64_t host_bytes(const Ground& ground, const PlanSizes& sizes) {
  return needed_bytes(lines_of(ground, sizes), Tier::host);
}

// What the weights of each use's units take where they are on their way and computed with.
struct UnderWay {
  std::vector<uint64_t> host, device;
};
UnderWay units_under_way(const Ground& ground, bool all_rest) {
  const Workload& workload = ground.request.workload;
  UnderWay bytes;
  for (const Use& use : workload.uses) {
    bytes.host.push_back(0);
    bytes.device.push_back(0);
    for (uint32_t unit : use.units) {
      if (ground.rests_on_device(unit)) continue;
      const WeightBytes weights = weight_bytes(workload, ground.tiles, unit);
      if (!all_rest) bytes.host.back() += weights.at_rest;
      if (!ground.copies_to_device()) bytes.host.back() += weights.dequantised;
      bytes.device.back() += weights.at_rest + weights.dequantised;
    }
  }
  return bytes;
}

// The most that so many uses one after another have together.
uint64_t most_in_a_row(const std::vector<uint64_t>& bytes, size_t count) {
  uint64_t most = 0;
  for (size_t first = 0; first < bytes.size(); ++first) {
    uint64_t sum = 0;
    for (size_t i = first; i < std::min(bytes.size(), first + count); ++i) sum += bytes[i];
    most = std::max(most, sum);
  }
  return most;
}

void size_units(const Ground& ground, PlanSizes& sizes) {
  const Workload& workload = ground.request.workload;
  const UnderWay bytes = units_under_way(ground, sizes.host_weights == ground.ranges);
  // Where memory is short, there are few windows, and a unit arrives when the one before has left.
  const bool is_short = sizes.window_tiles <= kWindowTilesLeast && !ground.request.choices.window_tiles;
  sizes.host_units_bytes = most_in_a_row(bytes.host, is_short ? 1 : kUsesUnderWay);
  sizes.forward_units_bytes = ground.request.forward_in_steps ? most_in_a_row(bytes.host, 1) : 0;
  if (!ground.copies_to_device()) return;
  const uint64_t ranks = std::max(1u, workload.ranks);
  sizes.device_units_bytes = workload.keeps_weights ? kept_units_bytes(workload, ground.tiles).back()
                                                    : most_in_a_row(bytes.device, is_short ? 1 : 2) * ranks;
  sizes.device_forward_units_bytes = ground.request.forward_in_steps ? most_in_a_row(bytes.device, 1) * ranks : 0;
  // Added up for one use while those of the one before are downloaded, and taken in while the next are.
  std::vector<uint64_t> sums;
  uint64_t downloaded = 0;
  for (const Use& use : workload.uses) {
    sums.push_back(0);
    for (uint32_t unit : use.units) {
      if (!workload.units[unit].trainable) continue;
      const DeviceSumBytes sum = device_sum_bytes(workload, unit, sizes.micro_batch_group);
      if (ground.rests_on_device(unit)) {
        sums.back() += sum.sum;
        downloaded = std::max(downloaded, round_up(squares_bytes(workload.units[unit].elements), kAlignmentBytes));
        continue;
      }
      sums.back() += sum.sum + sum.rounded;
      downloaded = std::max(downloaded, sum.rounded > 0 ? sum.rounded : sum.sum);
    }
  }
  sizes.device_gradients_bytes = most_in_a_row(sums, is_short ? 1 : 2);
  sizes.downloaded_bytes = downloaded * (is_short ? 1 : 2);
}

// `in_host`: of a device's uses that offload, how many to host memory.
void size_activations(const Ground& ground, const PlanChoices& choices, uint32_t in_host, PlanSizes& sizes) {
  const std::vector<Use>& uses = ground.request.workload.uses;
  const ActivationChoice choice = choices.activations.value_or(ActivationChoice::recompute);
  sizes.stores_activations = ground.request.stores_activations;
  sizes.activations.assign(uses.size(), choice);
  sizes.spills_activations.assign(uses.size(), false);
  // Of those that would be computed again or leave, some may keep all that they have made.
  const uint32_t keep = choice == ActivationChoice::keep ? 0 : share_of(choices.keep_share, uses.size());
  const uint32_t first_trained = first_trained_use(ground.request.workload);
  uint64_t placed = 0, offloaded = 0, spilled = 0, most_leaving = 0, most_spilled = 0, whole = 0, boundary = 0;
  for (size_t use = 0; use < uses.size(); ++use) {
    if ((use + 1) * keep / uses.size() > use * keep / uses.size()) sizes.activations[use] = ActivationChoice::keep;
    const ActivationChoice of_use = sizes.activations[use];
    const bool goes_back = use >= first_trained;
    const uint64_t bytes = goes_back ? activation_place_bytes(uses[use], of_use) : 0;
    if (!offloads(of_use)) {
      placed += bytes;
    } else if (ground.copies_to_device() && in_host > 0) {
      --in_host;
      offloaded += bytes;
    } else {
      sizes.spills_activations[use] = true;
      spilled += bytes;
      most_spilled = std::max(most_spilled, bytes);
    }
    if (offloads(of_use)) most_leaving = std::max(most_leaving, bytes);
    if (goes_back && recomputes(of_use)) whole = std::max(whole, uses[use].activation_bytes);
    boundary = std::max(boundary, uses[use].boundary_bytes);
  }
  const uint64_t group = sizes.micro_batch_group;
  sizes.offloaded_bytes = offloaded * group;
  sizes.spilled_bytes = spilled * group;
  sizes.kept_bytes = placed * group;
  sizes.moving_bytes = std::min((offloaded + spilled) * group, most_leaving * kActivationsUnderWay);
  sizes.passing_bytes = ground.copies_to_device() ? std::min(spilled * group, most_spilled * kActivationsUnderWay) : 0;
  // Between two uses lie every micro-batch's hidden state and its gradient; recomputation makes one use's whole.
  sizes.computing_bytes = 2 * boundary * group + whole;
}

// Gradients that are retained for the verdict wait in the same places.
uint32_t count_deferred(const Ground& ground, const PlanSizes& sizes) {
  if (ground.clips() || !(sizes.deferred_share > 0)) return 0;
  const Workload& workload = ground.request.workload;
  const std::vector<bool> deferred =
      deferred_tiles(workload, ground.tiles, place_tiles(workload, ground.tiles, sizes), sizes.deferred_share);
  return static_cast<uint32_t>(std::count(deferred.begin(), deferred.end(), true));
}

// What a byte of host memory saves on the drives and step: a retained gradient up to two, a weight one (two in
// training), a state one. So what is left of the budget goes to them in that order, after what was chosen; a few
// trained units beside frozen ones come with their state before other weights.
void fill_host(const Ground& ground, const PlanChoices& choices, PlanSizes& sizes) {
  const uint64_t budget = ground.request.budgets.host_bytes;
  const uint32_t count = count_of(ground.order);
  auto grow = [&](uint32_t& chosen, uint32_t most) {
    const uint32_t least = chosen;
    chosen = most_that_fits(least, most, [&](uint32_t tried) {
      chosen = tried;
      return host_bytes(ground, sizes) <= budget;
    });
  };
  if (ground.clips() && !choices.retained_host_share) grow(sizes.retained_tiles, count);
  if (ground.spills(sizes)) {
    // Gradients on their way to the drives: as many as fill a lane, with the backlog; in free memory, or instead of
    // some that would stay.
    const uint64_t gradient_bytes = std::max<uint64_t>(1, ground.tiles.gradient_bytes_max());
    const uint64_t fill_lane = sizes.tiles_a_lane * ground.tiles.slot_bytes_max() / gradient_bytes;
    const uint64_t wanted = fill_lane - std::min<uint64_t>(fill_lane, sizes.backlog_tiles);
    const uint32_t may_go = choices.retained_host_share ? 0 : sizes.retained_tiles;
    const uint64_t used = host_bytes(ground, sizes);
    const uint64_t free_places = (budget - std::min(budget, used)) / gradient_bytes;
    sizes.leaving_tiles = static_cast<uint32_t>(std::min<uint64_t>(wanted, may_go + free_places));
    sizes.retained_tiles -= std::min(may_go, sizes.leaving_tiles);
    // Regions that begin on a page of their own may take a little more together than one by one.
    while (sizes.leaving_tiles > 0 && host_bytes(ground, sizes) > budget) --sizes.leaving_tiles;
  } else {
    sizes.fetched_gradient_tiles = 0;
    // With a place for each of a use's gradients, who computes goes on while they wait for their updates.
    if (ground.trains() && !ground.copies_to_device())
      grow(sizes.backlog_tiles,
           std::max(sizes.backlog_tiles, tiles_of_a_use(ground.request.workload, ground.tiles, ground.on_device)));
  }
  if (!choices.host_state_share && sizes.host_weights < ground.placed_first) {
    grow(sizes.host_weights, ground.placed_first);
    if (sizes.host_weights == ground.placed_first) grow(sizes.host_state_tiles, count);
  }
  if (choices.weights == WeightTier::automatic) {
    grow(sizes.host_weights, ground.ranges);
    // Where all weights rest in host memory, none arrive: that memory may be what was missing.
    PlanSizes all = sizes;
    all.host_weights = ground.ranges;
    if (ground.trains()) size_units(ground, all);
    if (host_bytes(ground, all) <= budget) sizes = all;
  }
  if (!choices.host_state_share && sizes.host_weights == ground.ranges) grow(sizes.host_state_tiles, count);
}

// Takes line by line, so that a refusal says what had the rest.
Status take_all(const PlanRequest& request, const std::vector<BudgetLine>& lines) {
  const Budgets& budgets = request.budgets;
  Budget tiers[] = {Budget(Tier::device, budgets.device_bytes), Budget(Tier::host, budgets.host_bytes),
                    Budget(Tier::nvme, budgets.nvme_bytes)};
  for (Budget& budget : tiers) {
    uint64_t later_bytes = needed_bytes(lines, budget.tier());
    for (const BudgetLine& line : lines) {
      if (line.tier != budget.tier()) continue;
      later_bytes -= line.bytes;
      PENSTOCK_TRY(budget.take(line.name, line.bytes, later_bytes));
    }
  }
  return Status();
}

}  // namespace

std::vector<uint32_t> windows_worth_trying(const MachineProfile& machine) {
  std::vector<uint32_t> windows;
  for (uint32_t count = drives_of(machine) * kWindowTilesPerDrive; count > kWindowTilesLeast; count /= 2)
    windows.push_back(count);
  windows.push_back(kWindowTilesLeast);
  return windows;
}

uint32_t tiles_of_a_use(const Workload& workload, const TileMap& tiles, const std::vector<bool>& on_device) {
  uint32_t most = 0;
  for (const Use& use : workload.uses) {
    uint32_t count = 0;
    for (uint32_t unit : use.units) {
      const bool comes = workload.units[unit].trainable && !rests_on_device(on_device, unit);
      if (comes) count += tiles.first_of(unit + 1) - tiles.first_of(unit);
    }
    most = std::max(most, count);
  }
  return most;
}

uint64_t book_bytes_per_tile(const PlanRequest& request) {
  return (request.workload.clipping.may_take_back() ? 17 : 8) * kBookBytesPerMove;
}

Result<PlanFit> fit_plan(const PlanRequest& request, const PlanChoices& choices) {
  const Workload& workload = request.workload;
  PlanSizes sizes;
  sizes.micro_batch_group = std::clamp<uint32_t>(choices.micro_batch_group.value_or(workload.micro_batches), 1,
                                                 std::max(1u, workload.micro_batches));
  if (request.machine.copies_to_device()) {
    sizes.on_device = units_on_device(workload, choices.device_share, sizes.micro_batch_group);
  }
  const Ground ground(request, *choices.tile_elements, sizes.on_device);
  const uint32_t count = count_of(ground.order);
  sizes.window_tiles = choices.window_tiles.value_or(windows_worth_trying(request.machine).front());
  sizes.ahead_window_tiles = ground.clips() ? choices.ahead_window_tiles.value_or(0) : 0;
  sizes.tiles_a_lane = std::clamp(sizes.window_tiles / 3, 1u, drives_of(request.machine) * kLaneTilesPerDrive);
  // Gradients that wait for their tile's state.
  sizes.backlog_tiles = std::max(kBacklogTilesLeast, sizes.window_tiles * 2 / 3);
  sizes.sums = lay_out_sums(workload, sizes.micro_batch_group,
                            request.machine.copies_to_device() ? GivenIn::elsewhere : GivenIn::host_memory);
  sizes.retained_tiles = ground.clips() ? share_of(choices.retained_host_share, count) : 0;
  sizes.host_state_tiles = share_of(choices.host_state_share, count);
  const uint32_t ranges_with_state = ground.placed_first > 0 ? ground.placed_first : ground.ranges;
  sizes.host_weights =
      choices.weights == WeightTier::host ? ground.ranges : share_of(choices.host_state_share, ranges_with_state);
  if (ground.spills(sizes)) sizes.fetched_gradient_tiles = sizes.backlog_tiles;
  if (ground.trains()) {
    size_units(ground, sizes);
    const auto uses = static_cast<uint32_t>(workload.uses.size());
    const uint32_t in_host = choices.offload_host_share ? share_of(choices.offload_host_share, uses) : uses;
    size_activations(ground, choices, in_host, sizes);
    if (!choices.offload_host_share && sizes.offloaded_bytes > 0) {
      // Where host memory is full, the rest goes to the drives.
      const uint32_t fitting = most_that_fits(0, uses, [&](uint32_t tried) {
        size_activations(ground, choices, tried, sizes);
        return host_bytes(ground, sizes) <= request.budgets.host_bytes;
      });
      size_activations(ground, choices, fitting, sizes);
    }
  }
  sizes.deferred_share = ground.trains() ? choices.deferred_share.value_or(0) : 0;
  sizes.deferred_tiles = count_deferred(ground, sizes);
  fill_host(ground, choices, sizes);
  if (ground.spills(sizes)) sizes.deferred_share = 0;
  sizes.deferred_tiles = count_deferred(ground, sizes);
  std::vector<BudgetLine> lines = lines_of(ground, sizes);
  PENSTOCK_TRY(take_all(request, lines));
  return PlanFit{ground.tiles, std::move(sizes), std::move(lines)};
}

}  // namespace penstock
