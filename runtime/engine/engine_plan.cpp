// Engine's verb for a new plan between steps.
#include <utility>

#include "runtime/engine/engine_waits.h"
#include "runtime/engine/plan_change.h"

namespace penstock::engine {

Status Engine::new_plan(const PlanRequest& request) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "new plan"));
  if (in_writes_) return Status(Code::kUsage, "new plan: writes have begun", "end them with end_writes() first");
  if (options_.ranks != nullptr) {
    return Status(Code::kUsage, "new plan: of one rank of several", "open the store again, on all ranks");
  }
  PENSTOCK_TRY(same_model(options_.request, request));
  const ArenaRoom room = thread_->ask([this] { return core_->arena_room(); });
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan_within(with_tiles_of(request, plan_->tiles.tile_elements(), slots_), room));
  return change_plan(request, std::move(chosen), "as asked for");
}

Status Engine::change_plan(const PlanRequest& request, ChosenPlan chosen, const std::string& why) {
  PENSTOCK_TRY(refuse_moves(chosen.plan, options_.device != nullptr));
  PENSTOCK_TRY(validate(chosen.plan));
  if (chosen.plan.on_device != plan_->on_device) {
    return Status(Code::kUsage,
                  text("new plan: computes ", chosen.plan.on_device ? "on a device" : "in host memory",
                       ", the run does ", plan_->on_device ? "on a device" : "in host memory"),
                  "open the store again for that machine");
  }
  PENSTOCK_TRY(settle_steps());
  const Clock::time_point begin = Clock::now();
  const std::string before = summary_of(*plan_, predicted_s_), after = summary_of(chosen.plan, chosen.step_s());
  Answer<Status> answer;
  thread_->mailbox().post([&] {
    core_->between_turns([&] {
      PlanRequest planned_for = std::exchange(options_.request, request);
      const Status changed = core_->change_plan(std::move(chosen));
      if (!changed.ok()) options_.request = std::move(planned_for);
      answer.give(changed);
    });
  });
  PENSTOCK_TRY(answer.wait());
  take_up_plan();
  if (options_.on_new_plan) {
    options_.on_new_plan(text("new plan after step ", steps_done_, ", ", why, ": ", after, "; until now ", before,
                              "; changed in ", static_cast<uint64_t>(seconds_since(begin) * 1000), " ms"));
  }
  return Status();
}

}  // namespace penstock::engine
