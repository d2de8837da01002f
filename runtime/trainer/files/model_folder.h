// Folders as Hugging Face has them: config.json, model.safetensors or shards of it with an index, and what belongs to
// the tokenizer. Weights pass unit by unit in pieces; no more than a piece of the model is in memory.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/trainer/files/safetensors.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// The config.json of a folder, as text.
Result<std::string> read_config_file(const std::string& folder);

class ModelFolder {
 public:
  // Looks up every parameter of `model` but those of adapters, whose elements are read as zeros; refuses the folder if
  // one is missing or of another shape. Names may lack the prefix "transformer." or "model.", as of models saved
  // without their head.
  static Result<std::unique_ptr<ModelFolder>> open(const std::string& folder, const Model& model);

  // Elements [first, first + values.size()) of the unit; padding is zero.
  Status read(uint32_t unit, uint64_t first, std::span<float> values) const;
  // Tensors that the model has no parameter for, buffers that are computed and a tied head's copy left out: worth a
  // warning.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };
  explicit ModelFolder(const Model& model) : model_(model) {}
  Status find_all(const std::string& folder);

  const Model model_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::vector<Source>> sources_;  // by unit and parameter
  std::vector<std::string> unused_;
};

// Writes such a folder. It appears under its name when it is whole, and not before.
class ModelFolderWriter {
 public:
  struct Options {
    FileDtype dtype = FileDtype::bf16;
    uint64_t shard_bytes = 5'000'000'000;  // a larger file is split, between parameters
    std::string carry_from;                // a folder whose tokenizer and generation files come along; empty: none
  };
  // `config` is the text of config.json; the dtype in it becomes that of the files. Refuses a folder that exists.
  static Result<std::unique_ptr<ModelFolderWriter>> create(const std::string& folder, const std::string& config,
                                                           const Model& model, const Options& options);
  // Removes what was begun and not finished.
  ~ModelFolderWriter();

  // Elements [first, first + values.size()) of the unit, padding included; all of each unit, in any order.
  Status write(uint32_t unit, uint64_t first, std::span<const float> values);
  Status finish();

 private:
  ModelFolderWriter(std::string folder, const Model& model) : folder_(std::move(folder)), model_(model) {}
  Status begin(const std::string& config, const Options& options);
  Status carry(const std::string& from) const;

  const std::string folder_;
  const Model model_;
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::vector<std::vector<uint32_t>> shard_of_;  // by unit and parameter
  bool finished_ = false;
};

}  // namespace penstock::trainer
