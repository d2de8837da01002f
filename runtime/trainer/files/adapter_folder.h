// Adapters as PEFT writes and reads them: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/files/safetensors.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// What an adapter_config.json says of shapes and scale; `adapter` is left empty. Refuses what we would compute
// otherwise than PEFT: ranks that differ by module, DoRA, biases, and the like.
Result<LoraConfig> parse_adapter_config(const std::string& json);
Result<LoraConfig> read_adapter_config(const std::string& folder);

// Where a folder is named to begin with, and no rank: takes shapes and scale from there, and dropout where none is
// said.
Status resolve_adapter(LoraConfig& lora);

// `base`: where the frozen weights are from; empty: unknown.
std::string adapter_config_json(const LoraConfig& lora, const Model& model, const std::string& base);

class AdapterFolder {
 public:
  // Looks up every factor of `model`, and every parameter that is trained whole; refuses the folder if one is missing
  // or of another shape, or if it has what the model has no place for.
  static Result<std::unique_ptr<AdapterFolder>> open(const std::string& folder, const Model& model);

  // Puts the folder's values over elements [first, first + values.size()) of the unit; others stay.
  Status read(uint32_t unit, uint64_t first, std::span<float> values) const;

 private:
  explicit AdapterFolder(const Model& model) : model_(model) {}
  Status find_all(const std::string& folder);

  const Model model_;
  std::unique_ptr<SafetensorsFile> file_;
  std::vector<std::vector<const StoredTensor*>> sources_;  // by unit and parameter; none of what it has not
};

// Writes such a folder. It appears under its name when it is whole, and not before.
class AdapterFolderWriter {
 public:
  // Of the factors in `model` and what is trained whole. `config` is adapter_config.json's text. Refuses a folder that
  // exists.
  static Result<std::unique_ptr<AdapterFolderWriter>> create(const std::string& folder, const std::string& config,
                                                             const Model& model, FileDtype dtype);
  // Removes what was begun and not finished.
  ~AdapterFolderWriter();

  // Elements [first, first + values.size()) of the unit; of what an adapter has not nothing is kept.
  Status write(uint32_t unit, uint64_t first, std::span<const float> values);
  Status finish();

 private:
  AdapterFolderWriter(std::string folder, const Model& model) : folder_(std::move(folder)), model_(model) {}
  Status begin(const std::string& config, FileDtype dtype);

  const std::string folder_;
  const Model model_;
  std::unique_ptr<SafetensorsWriter> file_;
  bool finished_ = false;
};

}  // namespace penstock::trainer
