// TrainingSettings is a run made ready: its config with everything that follows from it filled in, the model, the
// samples, and what the engine is asked for. It needs no LibTorch.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/ranks/ranked_engine.h"
#include "runtime/trainer/compute_device.h"
#include "runtime/trainer/config/parameter_groups.h"
#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/data/samples.h"
#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/prompts.h"
#include "runtime/trainer/trainer_state.h"

namespace penstock::trainer {

// Ranks that have all of the model together, by the config's stage and shards.
uint32_t group_ranks_of(const TrainConfig& config, uint32_t ranks);

struct TrainingSettings {
  TrainConfig config;        // batches, steps and schedule filled in
  std::string model_json;    // the model's config.json
  std::string model_folder;  // Hugging Face's, with weights to begin with; empty: from scratch
  Model model;
  ParameterGroups groups;
  Samples samples;
  Prompts prompts = {};          // none: nothing is asked while it goes on
  engine::EngineOptions engine;  // the machine, the uses' times and activations are not filled in
  ComputeDevice device = {};
  // What computes there; none: the CPU. measure_step() fills it in.
  std::shared_ptr<Accelerator> accelerator = {};
  uint64_t device_bytes = 0;      // of a device with memory of its own, the arena and tensors together; 0: none
  uint64_t tensor_bytes = 0;      // that LibTorch needs beside what the plan counts; 0: not measured
  double product_flops = 0;       // in a second, of large products here by themselves; 0: not measured
  engine::RankPlace place = {};   // budgets and drives above are this rank's
  bool shares_on_device = false;  // of several ranks; see RankedOptions

  // Of the machine's: what the host device has is there too.
  uint64_t memory_bytes() const {
    const Budgets& budgets = engine.request.budgets;
    return budgets.host_bytes + (device.kind == ComputeDevice::Kind::host ? budgets.device_bytes : 0);
  }
  uint64_t tokens_of_step() const { return config.sequence_length * config.train_batch; }
  // Where forward leaves for backward what is not offloaded: the engine keeps all, or none.
  Keeping keeping() const { return engine.request.stores_activations ? Keeping::with_engine : Keeping::in_memory; }
  // Of all ranks' micro-batches of a step, the first that this rank computes.
  uint64_t first_micro_batch() const { return place.rank * config.accumulation; }
  // REQUIRES: there are several ranks.
  engine::RankedOptions ranked() const;
  // What a root keeps of the run at its beginning; later ones have counts and the loss scale too.
  TrainerState initial_state() const;
};

}  // namespace penstock::trainer
