#include "runtime/engine/plan_change.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "tiering/store/store_shape.h"

namespace penstock::engine {
namespace {

// Budgets are lowered by what was too much; regions that begin on a page of their own may need it once more.
constexpr int kAttempts = 4;

Status refuse(const std::string& why) {
  return Status(Code::kUsage, "new plan: " + why, "open the store again with that request");
}

uint64_t excess(const Plan& plan, Tier tier, uint64_t room_bytes) {
  const uint64_t bytes = arena_bytes(plan.budget_lines, tier);
  return bytes - std::min(bytes, room_bytes);
}

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
      return Status(Code::kUsage,
                    text("engine: the plan has a move of kind ", name_of(move.kind), "; steps run on one rank only"),
                    "plan for 1 rank");
    }
    const bool leaves = move.kind == MoveKind::offload_activation || move.kind == MoveKind::spill_activation;
    if (leaves && !plan.stores_activations) {
      return Status(Code::kUsage, "engine: the plan offloads activations, and the trainer keeps them in its own memory",
                    "plan with activations that are kept or recomputed, or hand them over with put()");
    }
  }
  return Status();
}

Status same_model(const PlanRequest& here, const PlanRequest& there) {
  const Workload &mine = here.workload, &other = there.workload;
  const uint64_t tile_elements = kBlockElements;
  const std::string difference = StoreShape::of(mine, TileMap(mine, tile_elements))
                                     .first_difference(StoreShape::of(other, TileMap(other, tile_elements)));
  if (!difference.empty()) return refuse("for another model: " + difference);
  for (size_t unit = 0; unit < mine.units.size(); ++unit) {
    const bool is_same =
        mine.units[unit].trainable == other.units[unit].trainable && mine.units[unit].code == other.units[unit].code;
    if (!is_same) return refuse(text("unit ", mine.units[unit].name, " rests in another form"));
  }
  if (mine.form != other.form) return refuse("for another form of the state");
  if (mine.pass != other.pass) return refuse("with and without passes through the model");
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
    request.budgets.host_bytes -= std::min(request.budgets.host_bytes, host);
    request.budgets.device_bytes -= std::min(request.budgets.device_bytes, device);
  }
  return refusal;
}

std::string summary_of(const Plan& plan, double step_s) {
  uint64_t resting_bytes = 0;
  for (const BudgetLine& line : plan.budget_lines) {
    const bool rests = line.region == Region::resting_weights || line.region == Region::resting_states;
    if (rests) resting_bytes += line.bytes;
  }
  const auto kept = std::count(plan.activations.begin(), plan.activations.end(), ActivationChoice::keep);
  std::string words;
  if (!plan.computes.empty()) {
    words = text("activations of ", kept, " of ", plan.activations.size(), " uses kept, micro-batches in groups of ",
                 plan.micro_batch_group, ", ");
  }
  words += text(bytes_text(resting_bytes), " at rest in host memory, durable ", text_of(plan.durability));
  if (step_s <= 0) return words;
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), ", %.3f s a step", step_s);
  return words + seconds.data();
}

}  // namespace penstock::engine
