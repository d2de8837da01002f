#include "tools/update/update_run.h"

#include <unistd.h>

#include "aio/resident_memory.h"

namespace penstock::tools {
UpdateRun::UpdateRun(const UpdateSettings& settings)
    : settings_(settings),
      model_(settings.parameters,
             settings.unit_elements ? settings.unit_elements : SyntheticModel::usual_unit_elements(settings.parameters),
             settings.seed) {
  PlanRequest& request = options_.request;
  request.workload.units = model_.units();
  const bool clips = settings.clip || settings.strike_share > 0;
  request.workload.clipping = {.norm = clips ? 2 * model_.gradient_norm() : 0, .strike_share = settings.strike_share};
  request.machine = settings.machine;
  request.budgets.host_bytes = settings.host_bytes;
  request.durability = settings.durability;
  request.choices = settings.choices;
  request.slots = settings.slots;
  options_.drives = engine::direct_drives(settings.folders, settings.io);
  options_.update_threads = settings.threads;
  options_.seed = settings.seed;
  options_.config_hash = settings.config_hash;
  groups_.assign(SyntheticModel::kGroups, {.lr = 1e-4, .beta2 = 0.95});
  groups_[SyntheticModel::kMatrices].weight_decay = 0.1;
}

Status UpdateRun::create(aio::CreateOptions::Existing existing, const Tick& tick) {
  auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    model_.initial(unit, first, values);
    const uint64_t done = unit * model_.units().front().elements + first;
    return tick(static_cast<double>(done) / static_cast<double>(model_.parameters()));
  };
  count_process();
  return engine::Engine::create(options_, initial, existing);
}

Status UpdateRun::open(const Tick& tick) {
  count_process();
  options_.verifying = tick;
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(options_));
  engine_ = std::move(engine);
  return Status();
}

void UpdateRun::count_process() { options_.request.process_bytes = aio::resident_bytes() + kEngineOverheadBytes; }

bool UpdateRun::strikes(uint64_t step) const {
  // Evenly spread, beginning late enough that a run starts calmly.
  auto so_far = [&](uint64_t steps) {
    return static_cast<uint64_t>(static_cast<double>(steps) * settings_.strike_share);
  };
  return so_far(step) > so_far(step - 1);
}

Result<engine::StepReport> UpdateRun::step() {
  const uint64_t number = engine_->steps_done() + 1;
  PENSTOCK_TRY(engine_->begin({.groups = groups_, .micro_batches = 1, .loss_scale = loss_scale(number)}));
  for (uint32_t unit = static_cast<uint32_t>(model_.units().size()); unit-- > 0;) {
    Status given = engine_->gradient(unit, 0, Dtype::bf16, model_.gradient(number, unit));
    if (!given.ok()) return given;
  }
  return engine_->step();
}

}  // namespace penstock::tools
