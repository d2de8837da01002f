// UpdateRun runs optimizer steps over a synthetic model with its state on drives: training's I/O and updates without
// compute.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tools/nvme/job.h"
#include "tools/update/synthetic_model.h"

namespace penstock::tools {

struct UpdateSettings {
  uint64_t parameters = 250'000'000;
  uint64_t unit_elements = 0;  // 0: usual
  uint64_t seed = 1;
  std::vector<std::string> folders;
  uint64_t host_bytes = 256 * kMiB;  // the program included
  MachineProfile machine;
  std::optional<Durability> durability;  // empty: automatic
  PlanChoices choices;
  double strike_share = 0;  // of steps that clip; 0: not even looked at
  bool clip = false;        // clipping is on, whether it strikes or not
  uint32_t threads = 0;
  aio::IoEngineChoice io = aio::IoEngineChoice::automatic;
  uint32_t slots = 0;
  std::string config_hash;  // EngineOptions::config_hash
};

class UpdateRun {
 public:
  explicit UpdateRun(const UpdateSettings& settings);

  const SyntheticModel& model() const { return model_; }
  const engine::EngineOptions& options() const { return options_; }
  // Of hyper-parameters, by SyntheticModel::Group.
  const std::vector<Hyper>& groups() const { return groups_; }

  // `tick` hears how much is done, and may end it; then nothing is left.
  Status create(aio::CreateOptions::Existing existing, const Tick& tick = no_tick);
  // At the last committed step; the host budget is what the process has, and what the plan takes besides. `tick` hears
  // how much of a store in doubt has been verified.
  Status open(const Tick& tick = no_tick);
  void close() { engine_.reset(); }
  engine::Engine& engine() { return *engine_; }

  Result<engine::StepReport> step();
  // A step whose gradients are four times as large as usual, and twice as large as the clip: known after a quarter.
  bool strikes(uint64_t step) const;
  double loss_scale(uint64_t step) const { return strikes(step) ? 0.25 : 1; }
  double clip_norm() const { return options_.request.workload.clipping.norm; }

 private:
  // So that what has no place beside the program is refused before a store is made for it.
  void count_process();

  const UpdateSettings settings_;
  SyntheticModel model_;
  engine::EngineOptions options_;
  std::vector<Hyper> groups_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace penstock::tools
