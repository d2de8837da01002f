#include "runtime/trainer/training_settings.h"

#include <algorithm>

#include "runtime/trainer/config/effective_config.h"

namespace penstock::trainer {

TrainerState TrainingSettings::initial_state() const {
  return {.config = effective_json(config),
          .model_json = model_json,
          .model_folder = model_folder,
          .scale = LossScaler(config.loss_scaling, config.precision).state()};
}

namespace {

constexpr uint32_t kUsualStage = 3;

}  // namespace

uint32_t group_ranks_of(const TrainConfig& config, uint32_t ranks) {
  if (config.zero_stage.value_or(kUsualStage) == 0) return 1;
  return config.shard_ranks == 0 ? ranks : std::min(config.shard_ranks, ranks);
}

engine::RankedOptions TrainingSettings::ranked() const {
  return {.engine = engine,
          .group_ranks = group_ranks_of(config, place.ranks),
          .keeps_weights = config.zero_stage.value_or(kUsualStage) < 3,
          .shares_on_device = shares_on_device};
}

}  // namespace penstock::trainer
