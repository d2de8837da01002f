// What a run computes between steps and learns nothing from: the loss of what is held out, and answers to prompts.
#include <algorithm>
#include <array>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/training_batches.h"
#include "runtime/trainer/torch/training_run.h"

namespace penstock::trainer {

Result<std::vector<SetLoss>> TrainingRun::evaluate() {
  const std::vector<EvaluatedBatch> all = evaluated_batches(settings_);
  const uint64_t ranks = settings_.place.ranks, rank = settings_.place.rank, group = evaluation_group(settings_);
  std::vector<SetLoss> sets;
  for (const Samples::HeldOut& held_out : settings_.samples.held_out_of_sets()) sets.push_back({held_out.set, {}});
  PENSTOCK_TRY(engine_->begin_forward());
  // Each rank has its part of a group of all, at last maybe nothing: units are gathered from all of them.
  for (uint64_t first = 0; first < all.size(); first += group * ranks) {
    const uint64_t begin = std::min<uint64_t>(all.size(), first + rank * group);
    const uint64_t end = std::min<uint64_t>(all.size(), begin + group);
    std::vector<MicroBatch> batches;
    for (uint64_t i = begin; i < end; ++i) {
      batches.push_back(settings_.samples.held_out_batch(all[i].first, all[i].count));
    }
    Result<std::vector<StepLoss>> losses = step_.evaluate(batches);
    if (!losses.ok()) {
      if (ranks > 1) return engine_->give_up(losses.status());
      (void)engine_->end_forward();
      return losses.status();
    }
    for (uint64_t i = begin; i < end; ++i) {
      StepLoss& of_set = sets[all[i].set].loss;
      of_set = sum_of(std::array{of_set, (*losses)[i - begin]});
    }
  }
  PENSTOCK_TRY(engine_->end_forward());
  for (SetLoss& set : sets) {
    PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {.loss = set.loss}));
    set.loss = added.loss;
  }
  return sets;
}

uint64_t prompt_tokens_together(const TrainingSettings& settings) {
  return settings.config.micro_batch * settings.config.sequence_length;
}

Status TrainingRun::take_from_first_rank(std::span<int32_t> tokens) {
  const std::vector<uint64_t> mine(tokens.begin(), tokens.end());
  std::vector<uint64_t> all(mine.size() * settings_.place.ranks);
  PENSTOCK_TRY(engine_->exchange(mine, all));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(all[i]);
  return Status();
}

Question question_of(const TrainingSettings& settings, uint64_t number) {
  constexpr uint64_t kStream = 0x73616d706c6573;  // "samples": apart from what dropout draws
  const SampleConfig& config = settings.config.samples;
  return {.prompts = settings.prompts.prompts,
          .ends = settings.prompts.ends,
          .new_tokens = config.max_new_tokens,
          .rules = config.rules,
          .key = stream_key(config.seed.value_or(settings.config.seed), kStream, number),
          .tokens_together = prompt_tokens_together(settings)};
}

Result<std::vector<Continuation>> TrainingRun::answer(uint64_t number) {
  Question question = question_of(settings_, number);
  question.agree = [this](std::span<int32_t> chosen) { return take_from_first_rank(chosen); };
  PENSTOCK_TRY(engine_->begin_forward());
  Result<std::vector<Continuation>> answers = generate(settings_.model, link_, question);
  if (!answers.ok() && settings_.place.ranks > 1) return engine_->give_up(answers.status());
  const Status ended = engine_->end_forward();
  if (answers.ok() && !ended.ok()) return ended;
  return answers;
}

}  // namespace penstock::trainer
