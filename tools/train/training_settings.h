// TrainingSettings is a run made ready: its config with everything that follows from it filled in, the model, the
// samples, and what the engine is asked for. It needs no LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/trainer/config/parameter_groups.h"
#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/data/samples.h"
#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/trainer_state.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"

namespace penstock::tools {

struct TrainingSettings {
  trainer::TrainConfig config;  // batches, steps and schedule filled in
  std::string model_json;       // the model's config.json
  std::string model_folder;     // Hugging Face's, with weights to begin with; empty: from scratch
  trainer::Model model;
  trainer::ParameterGroups groups;
  trainer::Samples samples;
  engine::EngineOptions engine;  // the machine, the uses' times and activations are not filled in
  uint64_t tensor_bytes = 0;     // that LibTorch needs beside what the plan counts; 0: not measured

  // The host device's memory is the machine's, as the host's is.
  uint64_t memory_bytes() const { return engine.request.budgets.host_bytes + engine.request.budgets.device_bytes; }
  uint64_t tokens_of_step() const { return config.sequence_length * config.train_batch; }
  // Where forward leaves for backward what is not offloaded: the engine keeps all, or none.
  trainer::Keeping keeping() const {
    return engine.request.stores_activations ? trainer::Keeping::with_engine : trainer::Keeping::in_memory;
  }
  // What a root keeps of the run at its beginning; later ones have counts and the loss scale too.
  trainer::TrainerState initial_state() const;
};

// The machine that drives were measured of, with the device that the config asks for.
void compute_on(const MachineProfile& machine, TrainingSettings& settings);

// What a root of the store in these folders keeps of the run; none where there is no store.
Result<std::optional<trainer::TrainerState>> stored_state(const std::vector<std::string>& folders);

// The config that these flags ask for: of the file they name, of the store that is there, or the built-in one.
// `stored`: what the store has, if it is to be gone on with.
Result<trainer::TrainConfig> config_of(const TrainFlags& flags, const std::optional<trainer::TrainerState>& stored);

// `stored` as above: where the config names no model, the store's is trained.
Result<TrainingSettings> settings_of(const trainer::TrainConfig& config,
                                     const std::optional<trainer::TrainerState>& stored);

// What the run does otherwise than the one before it did, one line a key.
std::vector<std::string> changes_since(const TrainingSettings& settings, const trainer::TrainerState& stored);

// The model that a run trained: what its store's units are made of.
Result<trainer::Model> model_of(const trainer::TrainConfig& config, const std::string& model_json);

// Makes the store: weights come from the model's folder, or begin from scratch.
Status make_store(const TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick);

// The text that ships with Penstock.
std::string shipped_text();

// Writes the config that is followed into the run's folder, if there is one; it is made.
Status write_run_config(const TrainingSettings& settings);

}  // namespace penstock::tools
