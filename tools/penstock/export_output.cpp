#include "tools/penstock/export_output.h"

#include <filesystem>

#include "runtime/trainer/adapter_merge.h"
#include "runtime/trainer/files/adapter_folder.h"
#include "tools/train/model_of_run.h"

namespace penstock::tools {
namespace {

bool is_adapters(const trainer::ModelUnit& unit) { return unit.parameters.front().factor != trainer::Factor::none; }

class ModelOutput final : public ExportOutput {
 public:
  static Result<std::unique_ptr<ExportOutput>> create(const std::string& into, const Trained& trained,
                                                      const trainer::ModelFolderWriter::Options& options) {
    std::unique_ptr<ModelOutput> output(new ModelOutput(trained.model));
    trainer::Model bare = trained.model;
    std::erase_if(bare.units, [](const trainer::ModelUnit& unit) { return is_adapters(unit); });
    output->parameters_ = bare.parameters();
    PENSTOCK_TRY_ASSIGN(writer, trainer::ModelFolderWriter::create(into, trained.state.model_json, bare, options));
    output->writer_ = std::move(writer);
    return Result<std::unique_ptr<ExportOutput>>(std::move(output));
  }

  bool wants(uint32_t) const override { return true; }
  uint64_t parameters() const override { return parameters_; }
  Status write(uint32_t unit, uint64_t first, std::span<float> values) override {
    if (is_adapters(model_.units[unit])) {
      merge_.take(unit, first, values);
      return Status();
    }
    merge_.add(unit, first, values);
    return writer_->write(place_[unit], first, values);
  }
  Status finish() override { return writer_->finish(); }

 private:
  explicit ModelOutput(const trainer::Model& model) : model_(model), merge_(model) {
    uint32_t place = 0;
    for (const trainer::ModelUnit& unit : model.units) place_.push_back(is_adapters(unit) ? place : place++);
  }
  const trainer::Model& model_;
  trainer::AdapterMerge merge_;
  std::vector<uint32_t> place_;  // by unit: its number without adapters
  uint64_t parameters_ = 0;
  std::unique_ptr<trainer::ModelFolderWriter> writer_;
};

class AdapterOutput final : public ExportOutput {
 public:
  static Result<std::unique_ptr<ExportOutput>> create(const std::string& into, const Trained& trained,
                                                      trainer::FileDtype dtype) {
    const std::string config =
        trainer::adapter_config_json(trained.config.lora, trained.model, trained.state.model_folder);
    PENSTOCK_TRY_ASSIGN(writer, trainer::AdapterFolderWriter::create(into, config, trained.model, dtype));
    return Result<std::unique_ptr<ExportOutput>>(
        std::unique_ptr<ExportOutput>(new AdapterOutput(trained.model, std::move(writer))));
  }

  bool wants(uint32_t unit) const override {
    const trainer::ModelUnit& shape = model_.units[unit];
    return shape.trainable() || is_adapters(shape);
  }
  uint64_t parameters() const override { return model_.trained_parameters(); }
  Status write(uint32_t unit, uint64_t first, std::span<float> values) override {
    return writer_->write(unit, first, values);
  }
  Status finish() override { return writer_->finish(); }

 private:
  AdapterOutput(const trainer::Model& model, std::unique_ptr<trainer::AdapterFolderWriter> writer)
      : model_(model), writer_(std::move(writer)) {}

  const trainer::Model& model_;
  std::unique_ptr<trainer::AdapterFolderWriter> writer_;
};

}  // namespace

Result<Trained> trained_by(const RootPayload& root) {
  PENSTOCK_TRY_ASSIGN(state, trainer::parse_trainer_state(root.trainer_state));
  PENSTOCK_TRY_ASSIGN(config, trainer::parse_config(state.config));
  PENSTOCK_TRY_ASSIGN(model, model_of(config, state.model_json));
  return Trained{std::move(state), std::move(config), std::move(model)};
}

bool Trained::has_base() const {
  std::error_code error;
  return std::filesystem::is_directory(state.model_folder, error);
}

Result<std::unique_ptr<ExportOutput>> make_model_output(const std::string& into, const Trained& trained,
                                                        const trainer::ModelFolderWriter::Options& options) {
  return ModelOutput::create(into, trained, options);
}

Result<std::unique_ptr<ExportOutput>> make_adapter_output(const std::string& into, const Trained& trained,
                                                          trainer::FileDtype dtype) {
  return AdapterOutput::create(into, trained, dtype);
}

std::vector<uint32_t> units_in_order(const trainer::Model& model) {
  const trainer::AdapterMerge merge(model);
  std::vector<uint32_t> order;
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    if (is_adapters(model.units[unit])) continue;
    if (const auto adapters = merge.adapters_of(unit)) order.push_back(*adapters);
    order.push_back(unit);
  }
  return order;
}

}  // namespace penstock::tools
