#include "runtime/engine/plan_change.h"

#include <algorithm>
#include <utility>

#include "tiering/store/store_shape.h"

namespace penstock::engine {
namespace {

// Regions that begin on a page of their own may be too large by a little once more.
constexpr int kAttempts = 4;

Status refuse(const std::string& why) {
  return Status(Code::kUsage, "new plan: " + why, "open the store again with that request");
}

uint64_t excess(const Plan& plan, Tier tier, uint64_t room_bytes) {
  const uint64_t bytes = arena_bytes(plan.budget_lines, tier);
  return bytes - std::min(bytes, room_bytes);
}

// From what the plan takes, for it may take less than it was given.
void lower_budget(uint64_t& budget_bytes, const Plan& plan, Tier tier, uint64_t excess_bytes) {
  if (excess_bytes == 0) return;
  budget_bytes = std::min(budget_bytes, plan.needed_bytes(tier));
  budget_bytes -= std::min(budget_bytes, excess_bytes);
}

uint64_t resting_bytes(const Plan& plan, Tier tier) {
  uint64_t bytes = 0;
  for (const BudgetLine& line : plan.budget_lines) {
    const bool in_host = line.region == Region::resting_weights || line.region == Region::resting_states;
    const bool on_device =
        line.region == Region::device_resting_weights || line.region == Region::device_resting_states;
    if ((in_host || on_device) && line.tier == tier) bytes += line.bytes;
  }
  return bytes;
}

// What does not come from the drives in each step.
uint64_t resting_bytes(const Plan& plan) { return resting_bytes(plan, Tier::host) + resting_bytes(plan, Tier::device); }

}  // namespace

PlanRequest with_tiles_of(PlanRequest request, uint64_t tile_elements, uint32_t slots) {
  request.choices.tile_elements = tile_elements;
  request.slots = slots;
  return request;
}

Status refuse_moves(const Plan& plan, bool has_device) {
  if (plan.on_device && !has_device) {
    return Status(Code::kUsage, "engine: the plan computes on a device, and the engine was given none",
                  "give one, or plan for a machine with 0 devices");
  }
  for (const Move& move : plan.moves) {
    if (move.lane == Lane::collective) {
      return Status(
          Code::kUsage,
          text("engine: the plan moves bytes between ranks (", name_of(move.kind), "), and this engine has one rank"),
          "plan for 1 rank, or open a RankedEngine");
    }
    const bool leaves = move.kind == MoveKind::download_activation || move.kind == MoveKind::spill_activation;
    if (leaves && !plan.stores_activations) {
      return Status(Code::kUsage, "engine: the plan offloads activations, and the trainer keeps them in its own memory",
                    "plan with activations that are kept or recomputed, or hand them over with put()");
    }
  }
  return Status();
}

PlanRequest with_updates_told(PlanRequest request) {
  if (!request.choices.device_share) request.choices.device_share = 0;
  return request;
}

Status refuse_untold_updates(const Plan& plan) {
  const bool any = std::any_of(plan.placements.begin(), plan.placements.end(),
                               [](const Placement& placement) { return placement.state_on_device(); });
  if (!any) return Status();
  return Status(Code::kUsage, "engine: on_updated, and the plan updates tiles on the device, which it is not told of",
                "plan with a device_share of 0, or read the weights after the step instead");
}

Status same_model(const PlanRequest& here, const PlanRequest& there) {
  const Workload &mine = here.workload, &other = there.workload;
  const uint64_t tile_elements = kBlockElements;
  const std::string difference = StoreShape::of(mine, TileMap(mine, tile_elements))
                                     .first_difference(StoreShape::of(other, TileMap(other, tile_elements)),
                                                       {.ours = "the run", .theirs = "the plan"});
  if (!difference.empty()) return refuse("for another model: " + difference);
  for (size_t unit = 0; unit < mine.units.size(); ++unit) {
    const bool is_same =
        mine.units[unit].trainable == other.units[unit].trainable && mine.units[unit].code == other.units[unit].code;
    if (!is_same) return refuse(text("unit ", mine.units[unit].name, " rests in another form"));
  }
  if (mine.form != other.form) return refuse("for another form of the state");
  if (mine.scope != other.scope) return refuse("with and without passes through the model");
  if (mine.ranks != other.ranks) return refuse(text("for ", other.ranks, " ranks, the run has ", mine.ranks));
  if (mine.clipping.norm != other.clipping.norm || mine.clipping.skips_overflow != other.clipping.skips_overflow) {
    return refuse("with other clipping, which would change what is learnt");
  }
  const bool is_durable_alike = here.durability.has_value() == there.durability.has_value() &&
                                (!here.durability || text_of(*here.durability) == text_of(*there.durability));
  if (!is_durable_alike) return refuse("with another durability than was promised");
  return Status();
}

Result<ChosenPlan> choose_plan_within(PlanRequest request, const ArenaRoom& room) {
  Status refusal;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
    const uint64_t host = excess(chosen.plan, Tier::host, room.host_bytes);
    const uint64_t device = excess(chosen.plan, Tier::device, room.device_bytes);
    if (host == 0 && device == 0) return Result<ChosenPlan>(std::move(chosen));
    refusal = Status(Code::kDoesNotFit, text("new plan: its arenas would be ", bytes_text(host), " of host memory and ",
                                             bytes_text(device), " of device memory larger than the run's"));
    lower_budget(request.budgets.host_bytes, chosen.plan, Tier::host, host);
    lower_budget(request.budgets.device_bytes, chosen.plan, Tier::device, device);
  }
  return refusal;
}

double expected_gbps(const MachineProfile& machine, const Plan& plan, double read_share) {
  if (machine.drives.empty()) return 0;
  return machine.striped().gbps(read_share) * machine.share_by_memory(plan.passing_bytes());
}

PlanAtRates look_for_better(const PlanRequest& request, Plan present, const ArenaRoom& room, const NewPlanRule& rule,
                            double share) {
  PlanRequest at_rates = request;
  for (DriveRates& drive : at_rates.machine.drives) {
    drive.burst = drive.burst.scaled(share);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(share);
  }
  PlanAtRates found;
  found.machine = at_rates.machine;
  const double gbps = expected_gbps(found.machine, present, 0.5);
  const uint64_t resting = resting_bytes(present);
  found.present_s = predicted_step_s(std::move(present), found.machine);
  found.why = text("the drives give ", fixed(gbps, 3), " GB/s where ", fixed(gbps / share, 3), " were planned with");
  Result<ChosenPlan> chosen = choose_plan_within(at_rates, room);
  if (!chosen.ok() || chosen->step_s() >= found.present_s * (1 - rule.faster_by)) return found;
  // What rests in memory is written, unless it is durable, and what will rest there is read.
  const auto moved_bytes = static_cast<double>(resting + resting_bytes(chosen->plan));
  const double repaid_s = (found.present_s - chosen->step_s()) * rule.repaid_within_steps;
  if (repaid_s > moved_bytes / (gbps * 1e9)) found.better = std::move(*chosen);
  return found;
}

std::string summary_of(const Plan& plan, double step_s) {
  const auto kept = std::count(plan.activations.begin(), plan.activations.end(), ActivationChoice::keep);
  std::string words;
  if (!plan.computes.empty()) {
    words = text("activations of ", kept, " of ", plan.activations.size(), " uses kept, micro-batches in groups of ",
                 plan.micro_batch_group, ", ");
  }
  words += text(bytes_text(resting_bytes(plan, Tier::host)), " at rest in host memory, ");
  const uint64_t on_device = resting_bytes(plan, Tier::device);
  if (on_device > 0) words += text(bytes_text(on_device), " on the device, ");
  words += text("durable ", text_of(plan.durability));
  if (step_s <= 0) return words;
  return text(words, ", ", fixed(step_s, 3), " s a step");
}

}  // namespace penstock::engine
