// Engine's new plans between steps: those that it is asked for, and those that it looks for itself.
#include <algorithm>
#include <system_error>
#include <utility>

#include "aio/available_memory.h"
#include "aio/resident_memory.h"
#include "runtime/engine/engine_waits.h"
#include "runtime/engine/plan_change.h"

namespace penstock::engine {
namespace {

// Seen, with searches of 17 000 and of 10 000 tiles: 3 and 11 KiB.
constexpr uint64_t kBytesPerTileLooking = 16 * kKiB;

}  // namespace

Status Engine::new_plan(const PlanRequest& asked) {
  const PlanRequest request = options_.on_updated ? with_updates_told(asked) : asked;
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "new plan"));
  if (in_writes_) return Status(Code::kUsage, "new plan: writes have begun", "end them with end_writes() first");
  if (options_.has_other_ranks()) {
    return Status(Code::kUsage, "new plan: of one rank of several", "open the store again, on all ranks");
  }
  PENSTOCK_TRY(same_model(options_.request, request));
  const ArenaRoom room = thread_->ask([this] { return core_->arena_room(); });
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan_within(with_tiles_of(request, plan_->tiles.tile_elements(), slots_), room));
  return change_plan(request, std::move(chosen), "as asked for");
}

Status Engine::change_plan(const PlanRequest& request, ChosenPlan chosen, const std::string& why) {
  PENSTOCK_TRY(refuse_moves(chosen.plan, options_.device != nullptr));
  if (options_.on_updated) PENSTOCK_TRY(refuse_untold_updates(chosen.plan));
  PENSTOCK_TRY(validate(chosen.plan));
  if (chosen.plan.on_device != plan_->on_device) {
    return Status(Code::kUsage,
                  text("new plan: computes ", chosen.plan.on_device ? "on a device" : "in host memory",
                       ", the run does ", plan_->on_device ? "on a device" : "in host memory"),
                  "open the store again for that machine");
  }
  PENSTOCK_TRY(settle_steps());
  const Clock::time_point begin = Clock::now();
  const std::string before = summary_of(*plan_, prediction_.step_s()), after = summary_of(chosen.plan, chosen.step_s());
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
  ++new_plans_;
  take_up_plan();
  if (options_.on_new_plan) {
    options_.on_new_plan(text("new plan after step ", steps_done_, ", ", why, ": ", after, "; until now ", before,
                              "; changed in ", static_cast<uint64_t>(seconds_since(begin) * 1000), " ms"));
  }
  return Status();
}

// The search is pure and takes up to seconds; nothing waits for it.
void Engine::watch_rates(const DrivesUnderLoad& since_open) {
  const DrivesUnderLoad of_step = since_open - std::exchange(drives_load_, since_open);
  if (!rate_watch_ || looking_for_plan_.valid()) return;
  const MachineProfile& machine = options_.request.machine;
  const std::optional<double> share = rate_watch_->learn(expected_gbps(machine, *plan_, of_step.read_share()), of_step);
  if (!share) return;
  // A control group that is the budget leaves what the plan counts, and would end the program for more.
  const uint64_t looking_bytes = plan_->tiles.size() * kBytesPerTileLooking;
  if (aio::AvailableMemory::now().bytes < looking_bytes) return;
  // Nor has a budget that is the whole process's more than that, and later it has no more.
  const bool is_of_process = options_.request.process_bytes > kEngineOverheadBytes;
  const uint64_t peak_bytes = aio::resident_bytes_peak(), budget_bytes = options_.request.budgets.host_bytes;
  if (is_of_process && peak_bytes + looking_bytes > budget_bytes) {
    rate_watch_.reset();
    if (!options_.on_new_plan) return;
    options_.on_new_plan(text("the drives give ", fixed(*share * 100, 0),
                              " % of what was planned with; the plan stays, for looking for ", "another takes ",
                              bytes_text(looking_bytes), ", and of the budget ",
                              bytes_text(budget_bytes - std::min(budget_bytes, peak_bytes)), " are left"));
    return;
  }
  const ArenaRoom room = thread_->ask([this] { return core_->arena_room(); });
  auto look = [request = with_tiles_of(options_.request, plan_->tiles.tile_elements(), slots_), present = *plan_, room,
               rule = *options_.new_plan_rule,
               of = *share]() mutable { return look_for_better(request, std::move(present), room, rule, of); };
  try {
    looking_for_plan_ = std::async(std::launch::async, std::move(look));
  } catch (const std::system_error&) {
    return;  // no thread now; the rates will be off again
  }
}

// Without a better plan, the rates are what the present one is held to.
Status Engine::take_found_plan() {
  const bool is_found =
      looking_for_plan_.valid() && looking_for_plan_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!is_found) return Status();
  PlanAtRates found = looking_for_plan_.get();
  thread_->ask([&] {
    options_.request.machine = std::move(found.machine);
    return true;
  });
  prediction_.reset(found.present_s);
  if (!found.better) return Status();
  ++plans_found_;
  const Status changed = change_plan(PlanRequest(options_.request), std::move(*found.better), found.why);
  return changed.code() == Code::kDoesNotFit ? Status() : changed;
}

}  // namespace penstock::engine
