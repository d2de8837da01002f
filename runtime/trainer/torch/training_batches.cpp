#include "runtime/trainer/torch/training_batches.h"

#include <algorithm>

namespace penstock::trainer {

ComputeChoices choices_of(const TrainingSettings& settings) {
  return {.seed = settings.config.seed,
          .head_tokens = static_cast<int64_t>(settings.config.head_tokens),
          .head_rows = static_cast<int64_t>(settings.config.head_rows)};
}

std::vector<MicroBatch> micro_batches_of(const TrainingSettings& settings, uint64_t batch) {
  std::vector<MicroBatch> batches;
  const uint64_t accumulation = settings.config.accumulation, sequences = settings.config.micro_batch;
  const uint64_t first = (batch - 1) * accumulation * settings.place.ranks + settings.first_micro_batch();
  for (uint64_t number = first; number < first + accumulation; ++number) {
    batches.push_back(settings.samples.batch(number * sequences, sequences));
  }
  return batches;
}

std::vector<EvaluatedBatch> evaluated_batches(const TrainingSettings& settings) {
  const uint64_t sequences = settings.config.micro_batch, most = settings.config.eval_batches;
  const std::vector<Samples::HeldOut> sets = settings.samples.held_out_of_sets();
  std::vector<EvaluatedBatch> batches;
  for (size_t set = 0; set < sets.size(); ++set) {
    const uint64_t all = ceil_div(sets[set].count, sequences);
    for (uint64_t i = 0; i < (most == 0 ? all : std::min(all, most)); ++i) {
      batches.push_back({set, sets[set].first + i * sequences, std::min(sequences, sets[set].count - i * sequences)});
    }
  }
  return batches;
}

uint64_t evaluation_group(const TrainingSettings& settings) {
  constexpr uint64_t kHiddenMostBytes = 64 * kMiB;
  const uint64_t tokens = settings.config.micro_batch * settings.config.sequence_length;
  const uint64_t bytes = tokens * settings.model.config.hidden * bytes_of(settings.model.dtype);
  return std::clamp<uint64_t>(kHiddenMostBytes / bytes, 1, evaluated_batches(settings).size());
}

}  // namespace penstock::trainer
