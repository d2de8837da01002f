// StepRun: whole training steps over a synthetic model of equal units whose computing takes a set time. What is
// measured is what the engine adds to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tools/update/synthetic_model.h"

namespace penstock::bench {

// A parameter, with weights and state on drives: see bench/step.cpp.
constexpr double kReadBytes = 14, kWrittenBytes = 12;
// How long the drives take for a step of so many, by their profile.
double drives_s(const MachineProfile& machine, uint64_t parameters);

// sleep: another processor computes, a GPU's for example. spin: all of this machine's processors do, each for as much
// of its own time as the pass is said to take, so that whatever runs beside it makes it longer.
enum class Computing { sleep, spin };

struct StepSettings {
  std::vector<std::string> folders;
  uint32_t units = 24;
  uint64_t unit_elements = 0;
  double compute_s = 0;  // of a step's forward and backward passes together, without recomputing
  Computing computing = Computing::sleep;
  uint32_t micro_batches = 1;
  bool clips = false;  // by a norm that no step reaches
  MachineProfile machine;
  uint64_t host_bytes = 0;  // the program included
  PlanChoices choices;
  uint64_t activation_bytes = kMiB;  // of a unit and micro-batch, if it is kept
  Durability durability = {};
  std::optional<NewPlanRule> new_plan_rule = {};
  std::function<void(const std::string& line)> on_new_plan = {};
};

class StepRun {
 public:
  explicit StepRun(const StepSettings& settings);

  uint64_t parameters() const { return model_.parameters(); }
  Status create();
  Status open();
  void close() { engine_.reset(); }
  engine::Engine& engine() { return *engine_; }
  // What is trained and its budgets, as of the last open().
  const PlanRequest& request() const { return options_.request; }

  struct Step {
    engine::StepReport report;
    double first_wait_s = 0;  // until the first unit's weights were there
  };
  Result<Step> step();

 private:
  void count_process();
  void compute(const Plan& plan, const engine::ComputePass& pass) const;

  const StepSettings settings_;
  tools::SyntheticModel model_;
  engine::EngineOptions options_;
  const std::vector<Hyper> groups_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace penstock::bench
