// model_probe FOLDER fp32|bf16|fp16 [EXPORT_FOLDER SHARD_BYTES]: what transformers_test.py compares with transformers.
//
// Reads one micro-batch from stdin as JSON, {"tokens": [[...]], "targets": [[...]]}; prints {"loss": ..., "logits":
// [...]}. With EXPORT_FOLDER, the weights are written there again.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/trainer/files/model_folder.h"
#include "runtime/trainer/torch/train_step.h"
#include "tests/trainer/torch/logits.h"
#include "tests/trainer/torch/moving_weights.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::trainer {
namespace {

Status fill(const ModelFolder& folder, MovingWeights& weights, const Model& model) {
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    std::vector<float> values(model.units[unit].elements);
    PENSTOCK_TRY(folder.read(unit, 0, values));
    std::byte* to = weights.weights(unit).data();
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half =
          model.dtype == Dtype::bf16 ? arithmetic::bf16_of_float(values[i]) : arithmetic::fp16_of_float(values[i]);
      if (model.dtype == Dtype::fp32)
        std::memcpy(to + i * 4, &values[i], 4);
      else
        std::memcpy(to + i * 2, &half, 2);
    }
  }
  return Status();
}

Status probe(const std::string& path, Dtype dtype, const std::string& export_to, uint64_t shard_bytes) {
  PENSTOCK_TRY_ASSIGN(words, read_config_file(path));
  PENSTOCK_TRY_ASSIGN(config, parse_model_config(words));
  const Model model = make_model(config, dtype);
  PENSTOCK_TRY_ASSIGN(folder, ModelFolder::open(path, model));
  MovingWeights weights(model);
  PENSTOCK_TRY(fill(*folder, weights, model));

  const auto given = nlohmann::json::parse(std::cin);
  MicroBatch batch;
  batch.sequences = static_cast<int64_t>(given.at("tokens").size());
  batch.length = static_cast<int64_t>(given.at("tokens")[0].size());
  for (const auto& row : given.at("tokens"))
    for (const auto& token : row) batch.tokens.push_back(token);
  for (const auto& row : given.at("targets"))
    for (const auto& target : row) batch.targets.push_back(target);
  TrainStep step(model, weights, {}, std::vector(model.uses.size(), ActivationChoice::recompute));
  const MicroBatch batches[] = {batch};
  PENSTOCK_TRY_ASSIGN(losses, step.evaluate(batches));
  PENSTOCK_TRY_ASSIGN(logits, compute_logits(model, weights, batch));
  std::cout << nlohmann::json{{"loss", losses.front().mean()}, {"logits", logits}, {"unused", folder->unused()}}
            << "\n";

  if (export_to.empty()) return Status();
  const FileDtype file_dtype = dtype == Dtype::fp32   ? FileDtype::f32
                               : dtype == Dtype::bf16 ? FileDtype::bf16
                                                      : FileDtype::f16;
  PENSTOCK_TRY_ASSIGN(writer,
                      ModelFolderWriter::create(export_to, words, model,
                                                {.dtype = file_dtype, .shard_bytes = shard_bytes, .carry_from = path}));
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    std::vector<float> values(model.units[unit].elements);
    PENSTOCK_TRY(folder->read(unit, 0, values));
    PENSTOCK_TRY(writer->write(unit, 0, values));
  }
  return writer->finish();
}

}  // namespace
}  // namespace penstock::trainer

int main(int count, char** words) {
  using namespace penstock;
  if (count != 3 && count != 5) return 2;
  const std::string dtype = words[2];
  const Status status = trainer::probe(words[1],
                                       dtype == "fp32"   ? Dtype::fp32
                                       : dtype == "bf16" ? Dtype::bf16
                                                         : Dtype::fp16,
                                       count == 5 ? words[3] : "", count == 5 ? std::stoull(words[4]) : 0);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return static_cast<int>(status.code());
}
