// StartingValues: what the masters of a new store begin with. The weights of a model's folder, or from scratch;
// adapters those of PEFT's folder, or from scratch.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cpu_optim/update_workers.h"
#include "runtime/trainer/files/adapter_folder.h"
#include "runtime/trainer/files/model_folder.h"

namespace penstock::trainer {

class StartingValues {
 public:
  // Folders that are empty: from scratch. `model` outlives it.
  static Result<StartingValues> open(const Model& model, const std::string& model_folder,
                                     const std::string& adapter_folder, uint64_t seed);

  // Elements [first, first + values.size()) of the unit; padding is zero.
  Status read(uint32_t unit, uint64_t first, std::span<float> values) const;

 private:
  StartingValues(const Model& model, uint64_t seed, std::unique_ptr<cpu_optim::UpdateWorkers> workers)
      : model_(&model), seed_(seed), workers_(std::move(workers)) {}

  const Model* model_;
  uint64_t seed_;
  std::unique_ptr<cpu_optim::UpdateWorkers> workers_;  // share what has to be computed
  std::unique_ptr<ModelFolder> folder_;
  std::unique_ptr<AdapterFolder> adapters_;
};

}  // namespace penstock::trainer
