#include "tools/train/run_plan.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "runtime/engine/ranks/ranked_engine.h"
#include "runtime/trainer/files/file_io.h"
#include "tiering/plan/plan_search.h"
#include "tools/penstock/step_json.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/held_state.h"
#include "tools/plan/relief.h"
#include "tools/plan/resource_change.h"
#include "tools/train/run_report.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

constexpr double kShareOfRun = 0.01, kSecondsLeast = 0.05, kSecondsMost = 20;
constexpr double kSecondsMostOfSeveral = 5;  // where other ranks wait
constexpr uint32_t kSteps = 3;               // simulated
// Plans that are simulated to find the reliefs of one, and in a search: not exact, to tell what there is time for.
constexpr double kPlansOfReliefs = 12, kPlansOfSearch = 20;

// What may be spent on advice.
class Allowance {
 public:
  explicit Allowance(double seconds) : seconds_(seconds) {}
  bool lasts_for(double seconds) const { return spent_s() + seconds <= seconds_; }
  double spent_s() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin_ = Clock::now();
  const double seconds_;
};

Allowance allowance_of(const TrainingSettings& settings, const engine::StepEngine& engine) {
  const uint64_t done = engine.steps_done(), all = settings.config.max_steps;
  const double run_s = static_cast<double>(all - std::min(done, all)) * engine.predicted_step_s();
  return Allowance(
      std::clamp(kShareOfRun * run_s, kSecondsLeast, settings.place.ranks > 1 ? kSecondsMostOfSeveral : kSecondsMost));
}

Json budgets_json(const Budgets& budgets) {
  Json json = Json::object();
  auto put = [&](Tier tier, uint64_t bytes) {
    json[name_of(tier)] = is_unbounded(bytes) ? Json("unbounded") : Json(bytes);
  };
  put(Tier::device, budgets.device_bytes);
  put(Tier::host, budgets.host_bytes);
  put(Tier::nvme, budgets.nvme_bytes);
  return json;
}

Json state_json(const Plan& plan, const Workload& workload) {
  Json roles = Json::object();
  for (const HeldRole& held : held_state(plan, workload, 1)) {
    for (const Tier tier : kTiers)
      roles[name_of(held.role)][name_of(tier)] = static_cast<uint64_t>(held.bytes_of(tier));
  }
  return roles;
}

Json drives_json(const MachineProfile& machine) {
  Json drives = Json::array();
  for (const DriveRates& drive : machine.drives) {
    const bool is_known = drive.endurance_bytes > 0;
    drives.push_back({{"path", drive.path}, {"endurance_bytes", is_known ? Json(drive.endurance_bytes) : Json()}});
  }
  return drives;
}

// Of what all ranks write, the part that goes to the drives that this rank knows.
double drives_share(const TrainingSettings& settings) {
  const engine::RankPlace& place = settings.place;
  const bool shares = folders_of_rank(settings.config.stores, place) == settings.config.stores;
  return static_cast<double>(shares ? place.ranks_here() : 1) / place.ranks;
}

SimulationOptions simulated_steps() {
  SimulationOptions options;
  options.steps = kSteps;
  return options;
}

// Busy seconds of a step by lane, on average over durable ones and others.
Json lanes_json(Plan plan, const MachineProfile& machine) {
  std::array<double, kLanes> busy_s{};
  double drives_s = 0;
  const double durable = plan.durability.durable_share();
  auto add = [&](Durability::Kind kind, double share) {
    if (share <= 0) return;
    plan.durability = {kind, 1};
    const Simulation found = simulate(plan, machine, simulated_steps());
    for (size_t lane = 0; lane < kLanes; ++lane) busy_s[lane] += share * found.busy_s[lane] / kSteps;
    drives_s += share * found.drives_busy_s / kSteps;
  };
  add(Durability::Kind::step, durable);
  add(Durability::Kind::exit, 1 - durable);
  Json lanes = {{"drives", drives_s}};
  for (size_t lane = 0; lane < static_cast<size_t>(Lane::none); ++lane) {
    if (busy_s[lane] > 0) lanes[name_of(static_cast<Lane>(lane))] = busy_s[lane];
  }
  return lanes;
}

Result<double> step_s_with(PlanRequest request, const ResourceChange& change) {
  request.machine = change.machine;
  request.budgets = change.budgets;
  for (Use& use : request.workload.uses) {
    use.forward_s /= change.compute_faster;
    use.backward_s /= change.compute_faster;
  }
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  return chosen.step_s();
}

Json advice_json(const PlanRequest& request, const Allowance& allowance, double search_s) {
  Json changes = Json::array();
  bool is_complete = true;
  const Resources now{.machine = request.machine,
                      .asked = request.budgets,
                      .used = request.budgets,
                      .scope = request.workload.scope,
                      .ranks = request.workload.ranks};
  for (const ResourceChange& change : more_of_each(now)) {
    is_complete = allowance.lasts_for(search_s);
    if (!is_complete) break;
    const double before_s = allowance.spent_s();
    const Result<double> step_s = step_s_with(request, change);
    search_s = allowance.spent_s() - before_s;
    if (step_s.ok()) changes.push_back({{"what", change.what}, {"step_s", *step_s}});
  }
  return {{"changes", std::move(changes)}, {"complete", is_complete}};
}

// What the planner says of the plan by the rates that it was made by.
void add_times(Json& json, const Plan& plan, PlanRequest request, const Allowance& allowance, double step_s) {
  json["lanes"] = lanes_json(plan, request.machine);
  const double simulated_s = allowance.spent_s();
  if (allowance.lasts_for(kPlansOfReliefs * simulated_s)) {
    const std::vector<Relief> reliefs = find_reliefs(plan, request.machine, simulated_steps());
    json["bottleneck"] = bottleneck_of(reliefs, step_s);
    for (const Relief& relief : reliefs)
      json["saved_by_a_tenth_faster_s"][relief.resource] = std::max(0.0, relief.saved_s);
  }
  request.choices.tile_elements = plan.tiles.tile_elements();  // the store's
  json["advice"] = advice_json(request, allowance, kPlansOfSearch * simulated_s);
}

Json plan_json(const TrainingSettings& settings, const PlanRequest& request, const engine::StepEngine& engine) {
  const Plan& plan = engine.plan();
  return {{"since_step", engine.steps_done()},
          {"predicted_s", predicted_json(engine.predicted_step_s())},
          {"compute_s", compute_s(plan)},
          {"read_bytes_per_step", plan.read_bytes()},
          {"written_bytes_per_step", plan.mean_written_bytes(plan.durability)},
          {"durability", text_of(plan.durability)},
          {"budget_bytes", budgets_json(request.budgets)},
          {"budget", budget_json(plan)},
          {"state_bytes", state_json(plan, request.workload)},
          {"drives", drives_json(request.machine)},
          {"drives_share", drives_share(settings)}};
}

}  // namespace

Result<PlanRequest> request_of(const TrainingSettings& settings) {
  if (settings.place.ranks == 1) return PlanRequest(settings.engine.request);
  return engine::RankedEngine::request_of(settings.ranked(), settings.place);
}

double compute_s(const Plan& plan) {
  double sum_s = 0;
  for (const Move& move : plan.moves) sum_s += move.lane == Lane::compute ? move.seconds : 0;
  return sum_s;
}

Status RunPlan::write(const engine::StepEngine& engine) {
  if (folder_.empty()) return Status();
  const Allowance allowance = allowance_of(settings_, engine);
  PENSTOCK_TRY_ASSIGN(request, request_of(settings_));
  Json json = plan_json(settings_, request, engine);
  const double step_s = engine.predicted_step_s();
  if (step_s > 0) add_times(json, engine.plan(), request, allowance, step_s);
  return keep(json.dump(2) + "\n");
}

Status RunPlan::write_new(const engine::StepEngine& engine) {
  if (folder_.empty()) return Status();
  PENSTOCK_TRY_ASSIGN(request, request_of(settings_));
  return keep(plan_json(settings_, request, engine).dump(2) + "\n");
}

// Whole, or as it was.
Status RunPlan::keep(const std::string& content) const {
  const std::string path = folder_ + "/plan.json", partial = path + ".partial";
  PENSTOCK_TRY(trainer::write_small_file(partial, content));
  std::error_code failed;
  std::filesystem::rename(partial, path, failed);
  return failed ? errno_status(text("rename ", partial, " to ", path), failed.value()) : Status();
}

}  // namespace penstock::tools
