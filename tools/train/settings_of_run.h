// A run's settings, made of its flags, its config and what its store has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/files/starting_values.h"
#include "runtime/trainer/training_settings.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"

namespace penstock::tools {

using trainer::TrainingSettings;

// The machine that drives were measured of, with the device that the config asks for.
void compute_on(const MachineProfile& machine, TrainingSettings& settings);

// Those of a host's stores that this rank's lies in: all of them, or one for each rank there, where there are as many.
std::vector<std::string> folders_of_rank(const std::vector<std::string>& stores, const engine::RankPlace& place);

// What a root of the stores in a host's folders keeps of the run: that of rank 0 where all ranks are on one host, of
// this rank where they are on several, which do not see one another's folders; none where there is no store. Refuses
// what another number of ranks has made.
Result<std::optional<trainer::TrainerState>> stored_state(const std::vector<std::string>& stores,
                                                          const engine::RankPlace& place = {});

// The config that these flags ask for: of the file they name, of the store that is there, or the built-in one.
// `stored`: what the store has, if it is to be gone on with.
Result<trainer::TrainConfig> config_of(const TrainFlags& flags, const std::optional<trainer::TrainerState>& stored);

// `stored` as above: where the config names no model, the store's is trained. `cuda_usable` as in choose_device().
Result<TrainingSettings> settings_of(const trainer::TrainConfig& config,
                                     const std::optional<trainer::TrainerState>& stored,
                                     const engine::RankPlace& place = {}, const trainer::CudaUsable& cuda_usable = {});

// What the run does otherwise than the one before it did, one line a key.
std::vector<std::string> changes_since(const TrainingSettings& settings, const trainer::TrainerState& stored);

// The model that a run trained: what its store's units are made of.
Result<trainer::Model> model_of(const trainer::TrainConfig& config, const std::string& model_json);

// What a run's store is cut by: the model's units and uses in the form that the config asks for. The rest of a step is
// not filled in.
Workload workload_of(const trainer::TrainConfig& config, const trainer::Model& model,
                     const trainer::ParameterGroups& groups);

// "1024 parameters", and how many of them are trained where not all are.
std::string parameters_text(const trainer::Model& model);

// What the run begins with.
Result<trainer::StartingValues> starting_values(const TrainingSettings& settings);

// Makes the store: weights come from the model's folder, or begin from scratch. Several ranks make theirs together.
Status make_store(const TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick,
                  engine::Ranks* ranks = nullptr);

// The text that ships with Penstock.
std::string shipped_text();

// Writes the config that is followed into the run's folder, if there is one; it is made.
Status write_run_config(const TrainingSettings& settings);

}  // namespace penstock::tools
