// Forecast: what a training step of a model would be like on a machine: whether it fits, the bytes it moves, how long
// it takes and what limits it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tiering/plan/plan_search.h"
#include "tools/plan/exit_commit.h"
#include "tools/plan/relief.h"
#include "tools/plan/stage.h"
#include "tools/plan/training_workload.h"

namespace penstock::tools {

struct ForecastRequest {
  ModelShape shape;
  std::optional<AdapterShape> adapters = {};  // none: all weights are trained
  MachineProfile machine;                     // the whole node
  uint32_t ranks = 0;                         // of a node; 0: one for each device, or one
  uint32_t nodes = 1;                         // such machines
  // Of the whole node; device: of each one. 0: nine tenths of what the machine has.
  Budgets budgets{0, 0, 0};
  std::optional<Stage> stage;  // of several ranks; none: the fastest that fits
  RankCodes codes;             // of several ranks
  StateForm form;
  Clipping clipping;
  StepScope scope = StepScope::training;
  uint64_t tokens = 0;  // of a step, over all ranks
  uint64_t sequence = 0;
  uint32_t micro_batches = 0;            // of each rank; 0: usual
  std::optional<Durability> durability;  // none: automatic
  uint32_t slots = 0;                    // a tile, on the drives; 0: two or three, as PlanRequest says
  PlanChoices choices;
  bool record_spans = false;
  // Finds what bounds the step, or what would make it fit. Without it, a forecast has whether it fits, times and bytes.
  bool explains = true;
};

// Of a step on average: of those that are durable and others, of those that strike and others.
struct StepTimes {
  double step_s = 0;
  std::array<double, kLanes> busy_s{};
  double drives_busy_s = 0;  // reading, writing or both
};

// What a step would be like in one of the stages.
struct StageForecast {
  Stage stage = Stage::sharded;
  bool fits = false;
  double step_s = 0;
  uint64_t sent_bytes = 0;     // by a rank to others, and as many come to it
  uint64_t network_bytes = 0;  // of them, to ranks of other nodes
};

struct Forecast {
  ForecastRequest request;  // what was left open is filled in
  uint32_t ranks = 1;       // of all nodes
  bool assumes_network = false;
  Stage stage = Stage::sharded;
  std::vector<StageForecast> stages;  // all that were planned, this one among them
  PlanRequest rank_request;           // one rank's share of everything
  bool fits = false;
  std::vector<BudgetLine> needed;  // of one rank; where it does not fit, of the smallest plan
  std::string remedy;              // where it does not fit and is to be explained

  // Of one rank where it fits.
  std::optional<Plan> plan;
  Simulation simulation;  // of steps that are all durable and confirmed
  uint32_t simulated_steps = 0;
  Durability durability;
  StepTimes times;
  StepTimes other_times;           // of a step that is not durable
  double struck_step_s = 0;        // of a step whose gradients strike; 0: none is expected
  double read_bytes_per_step = 0;  // of all ranks
  double written_bytes_per_step = 0;
  // What ranks would send besides, were it not for the codes, in a step and of one rank: weights, gradients.
  uint64_t gathered_bytes_saved = 0, reduced_bytes_saved = 0;
  std::optional<ExitCommit> exit_commit;  // of one rank; no step's time or bytes have it
  double compute_bound_tokens = 0;        // of a step, from which on compute is the bottleneck; 0: unknown, or never
  std::vector<Relief> reliefs;            // the largest first; empty where a rate is unknown or nothing is explained
  std::vector<std::string> notes;

  double lane_busy_s(Lane lane) const { return times.busy_s[static_cast<size_t>(lane)]; }
  // What the profile has no rate of, and so counts as no time: the step then takes at least what is predicted.
  std::vector<std::string> unknown_rates() const;
  // The resource whose relief shortens the step the most: "drives", "compute", "host_to_device" ...; "order" where
  // none shortens it: parts of the step wait for one another's ends. Or "unknown".
  std::string bottleneck() const;
  RankCount rank_count() const { return {.of_node = ranks / request.nodes, .nodes = request.nodes}; }
  // Of what is known.
  std::optional<double> tokens_per_s() const;
  std::optional<double> drive_life_days() const;
  uint64_t needed_bytes(Tier tier) const;
  uint64_t budget_bytes(Tier tier) const;
};

// Told what share of the planning is done, and with what it goes on.
using PlanningProgress = std::function<void(double share, const std::string& with)>;

// Refuses what makes no sense; what does not fit is a forecast that says so.
Result<Forecast> forecast(ForecastRequest request, const PlanningProgress& progress = {});

}  // namespace penstock::tools
