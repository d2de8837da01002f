#include "runtime/trainer/training_settings.h"

#include "runtime/trainer/config/effective_config.h"

namespace penstock::trainer {

TrainerState TrainingSettings::initial_state() const {
  return {.config = effective_json(config),
          .model_json = model_json,
          .model_folder = model_folder,
          .scale = LossScaler(config.loss_scaling, config.precision).state()};
}

}  // namespace penstock::trainer
