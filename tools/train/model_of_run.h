// The model of a run, and the workload that its store is cut by.
#pragma once

#include <optional>
#include <string>

#include "runtime/trainer/training_settings.h"

namespace penstock::tools {

// Where a model is: its config.json, and the folder with its weights, empty where it begins from scratch.
struct ModelSource {
  std::string json;
  std::string folder;
};

// The model that the config names, or else the store's, or else the built-in one. A store that is gone on with has the
// model's config.json itself, for where the folder is no longer there. Refuses a config.json that no root has room for.
Result<ModelSource> model_source(const trainer::TrainConfig& config,
                                 const std::optional<trainer::TrainerState>& stored);

// The model that a run trained: what its store's units are made of.
Result<trainer::Model> model_of(const trainer::TrainConfig& config, const std::string& model_json);

// What a run's store is cut by: the model's units and uses in the form that the config asks for. The rest of a step is
// not filled in.
Workload workload_of(const trainer::TrainConfig& config, const trainer::Model& model,
                     const trainer::ParameterGroups& groups);

// "1024 parameters", and how many of them are trained where not all are.
std::string parameters_text(const trainer::Model& model);

}  // namespace penstock::tools
