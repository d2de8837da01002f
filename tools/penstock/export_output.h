// What `penstock checkpoint export` writes, fed with a store's values: a model's folder, or one of adapters.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/files/model_folder.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/trainer_state.h"
#include "tiering/store/root_payload.h"

namespace penstock::tools {

// What a store's run has trained.
struct Trained {
  trainer::TrainerState state;
  trainer::TrainConfig config;
  trainer::Model model;

  // Whether the folder that it began with is there.
  bool has_base() const;
};
// As the root of one of its stores says.
Result<Trained> trained_by(const RootPayload& root);

// Takes values unit by unit, in pieces, in the order of units_in_order(). What it was made with outlives it.
class ExportOutput {
 public:
  virtual ~ExportOutput() = default;
  virtual bool wants(uint32_t unit) const = 0;
  virtual uint64_t parameters() const = 0;  // that are written
  // May change the values.
  virtual Status write(uint32_t unit, uint64_t first, std::span<float> values) = 0;
  virtual Status finish() = 0;
};

// A whole model; adapters are added to its weights.
Result<std::unique_ptr<ExportOutput>> make_model_output(const std::string& into, const Trained& trained,
                                                        const trainer::ModelFolderWriter::Options& options);
// Adapters alone, and modules that were trained whole.
Result<std::unique_ptr<ExportOutput>> make_adapter_output(const std::string& into, const Trained& trained,
                                                          trainer::FileDtype dtype);

// Each unit behind its adapters.
std::vector<uint32_t> units_in_order(const trainer::Model& model);

}  // namespace penstock::tools
