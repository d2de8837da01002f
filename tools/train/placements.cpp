#include "tools/train/placements.h"

#include <set>

namespace penstock::tools {
namespace {

struct Resting {
  const char* name;
  WeightTier weights;
  double host_state_share;
  std::optional<double> retained_host_share = {};
  std::optional<double> device_share = {};
};

constexpr Resting kRestings[] = {{"all in host memory", WeightTier::host, 1},
                                 {"all on nvme", WeightTier::nvme, 0},
                                 {"5 % of the state in host memory", WeightTier::automatic, 0.05},
                                 {"half of the state in host memory", WeightTier::automatic, 0.5},
                                 {"weights in host memory", WeightTier::host, 0},
                                 {"gradients spilled", WeightTier::nvme, 0, 0},
                                 {"half on the device", WeightTier::automatic, 0, {}, 0.5},
                                 {"all on the device", WeightTier::automatic, 0, {}, 1}};

struct Activations {
  const char* name;
  ActivationChoice choice;
  std::optional<double> keep_share = {};
};

constexpr Activations kActivations[] = {{"keep", ActivationChoice::keep},
                                        {"recompute", ActivationChoice::recompute},
                                        {"offload", ActivationChoice::offload},
                                        {"offload inputs", ActivationChoice::recompute_offload},
                                        {"keep some, offload the others", ActivationChoice::offload, 0.5},
                                        {"keep some, recompute the others", ActivationChoice::recompute, 0.5}};

}  // namespace

std::vector<GridCase> all_placements(uint32_t micro_batches, trainer::ComputeDevice::Kind device) {
  const bool on_gpu = device == trainer::ComputeDevice::Kind::cuda;
  std::vector<GridCase> all;
  for (const Resting& resting : kRestings) {
    for (const Activations& activations : kActivations) {
      for (bool on_device : {false, true}) {
        if (!on_device && (on_gpu || resting.device_share)) continue;
        for (uint32_t group : std::set<uint32_t>{1, std::min(2u, micro_batches), micro_batches}) {
          PlanChoices choices;
          choices.weights = resting.weights;
          choices.host_state_share = resting.host_state_share;
          choices.retained_host_share = resting.retained_host_share;
          choices.device_share = resting.device_share;
          choices.activations = activations.choice;
          choices.keep_share = activations.keep_share;
          if (on_device) choices.offload_host_share = 0.5;
          choices.micro_batch_group = group;
          all.push_back({text(resting.name, "; ", activations.name,
                              on_gpu      ? "; on the GPU"
                              : on_device ? "; on the host device"
                                          : "; in place",
                              "; groups of ", group),
                         choices, on_device});
        }
      }
    }
  }
  return all;
}

TrainingSettings placed(const TrainingSettings& settings, const GridCase& one) {
  TrainingSettings here = settings;
  PlanRequest& request = here.engine.request;
  request.choices = one.choices;
  request.stores_activations = one.on_device || offloads(*one.choices.activations);
  if (settings.device.kind == trainer::ComputeDevice::Kind::cuda) return here;
  // As much as the host's: what is compared is not how it fits.
  request.budgets.device_bytes = one.on_device ? request.budgets.host_bytes : 0;
  here.device = {.kind = one.on_device ? trainer::ComputeDevice::Kind::host : trainer::ComputeDevice::Kind::cpu};
  compute_on(MachineProfile(request.machine), here);
  return here;
}

}  // namespace penstock::tools
