#include "tools/train/generate.h"

#include <algorithm>
#include <filesystem>

#include "aio/resident_memory.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/host_accelerator.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/way_back.h"
#include "tools/train/config_of_run.h"
#include "tools/train/run_prompts.h"
#include "tools/train/run_start.h"
#include "tools/train/store_link.h"

namespace penstock::tools {
namespace {

struct Found {
  uint64_t step = 0;
  std::vector<trainer::Continuation> answers;
};

void take_flags(const GenerateFlags& flags, trainer::SampleConfig& samples) {
  if (!flags.prompts.empty()) {
    samples.prompts.clear();
    samples.file.clear();
  }
  for (const std::string& prompt : flags.prompts)
    samples.prompts.push_back(Json(prompt).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (flags.tokenizer) samples.tokenizer = *flags.tokenizer;
  if (flags.new_tokens) samples.max_new_tokens = std::max<uint64_t>(1, *flags.new_tokens);
  if (flags.temperature) samples.rules.temperature = *flags.temperature;
  if (flags.top_k) samples.rules.top_k = *flags.top_k;
  if (flags.seed) samples.seed = *flags.seed;
}

// By the engine that the run had, which brings weights as its plan of a step does.
Result<Found> answers_of_run(Session& session, TrainingSettings& settings) {
  PENSTOCK_TRY(measure(session, settings));
  PENSTOCK_TRY(refuse_prompts_without_room(settings));
  PENSTOCK_TRY_ASSIGN(run, trainer::TrainingRun::open(settings));
  const uint64_t step = run->engine().steps_done();
  auto answers = run->answer(step);
  run.reset();
  if (!answers.ok()) return with_way_back(answers.status(), settings);
  return Found{step, *std::move(answers)};
}

// This process alone, on the CPU, from the stores of all ranks.
Result<Found> answers_of_ranks(InspectedStores& stores, const TrainingSettings& settings) {
  const trainer::Model& model = settings.model;
  PENSTOCK_TRY_ASSIGN(weights, StoreWeights::find(stores, settings.config, model));
  const uint64_t budget = settings.engine.request.budgets.host_bytes * settings.place.ranks;
  const uint64_t process_bytes = aio::resident_bytes() + weights->memory_bytes();
  const uint64_t remembered =
      trainer::generation_bytes(model, settings.prompts.prompts, settings.config.samples.max_new_tokens).all;
  const uint64_t needed = process_bytes + largest_use_bytes(model) + remembered;
  if (needed > budget) {
    return Status(Code::kDoesNotFit,
                  text("generate: ", bytes_text(needed), " of host memory needed: ", bytes_text(process_bytes),
                       " of the process, ", bytes_text(largest_use_bytes(model)), " of the largest unit, ",
                       bytes_text(remembered), " of keys and values; the budget is ", bytes_text(budget)),
                  "fewer or shorter prompts, a smaller samples.max_new_tokens, or a larger budget");
  }
  trainer::HostAccelerator accelerator;
  accelerator.limit_tensors(budget - process_bytes);
  // Half of the rest is left to what computes.
  StoreLink link(model, *weights, accelerator, (budget - needed) / 2);
  const uint64_t step = stores.ranks().front()->payload().step;
  PENSTOCK_TRY_ASSIGN(answers, trainer::generate(model, link, trainer::question_of(settings, step)));
  return Found{step, std::move(answers)};
}

// Answers do not depend on what there is to learn from.
void let_go_of_data(trainer::TrainConfig& config) {
  std::error_code unknown;
  for (trainer::DataFile& data : config.data) data.hash.clear();
  if (std::ranges::all_of(config.data, [&](const auto& data) { return std::filesystem::exists(data.path, unknown); }))
    return;
  config.data.clear();
  config.eval_every = config.keep_best = 0;
  config.early_stopping = {};
}

}  // namespace

Result<Answer> generate(Session& session, const GenerateFlags& flags) {
  std::error_code unknown;
  const bool is_folder = std::filesystem::is_directory(flags.source, unknown);
  TrainFlags of_run;
  of_run.config = is_folder ? flags.source + "/config.json" : flags.source;
  if (!std::filesystem::exists(*of_run.config, unknown)) {
    return Status(Code::kUsage, text("generate: ", flags.source, ": neither a run's folder nor a config"),
                  "the folder that `penstock train --run` was given");
  }
  if (is_models_config(*of_run.config)) {
    return Status(Code::kUsage, text("generate: ", flags.source, ": a model of Hugging Face's, and no run"),
                  text("penstock checkpoint import ", flags.source, " --store FOLDER"));
  }
  PENSTOCK_TRY_ASSIGN(config, config_of(of_run, std::nullopt));
  if (config.stores.empty() || !has_store(config.stores)) {
    return Status(Code::kUsage,
                  text("generate: ", config.stores.empty() ? *of_run.config : config.stores.front(), ": has no store"),
                  text("penstock train ", *of_run.config));
  }
  let_go_of_data(config);
  PENSTOCK_TRY(wait_while_taken(session, config.stores));
  auto opened = InspectedStores::open(config.stores);
  if (!opened.ok()) return with_way_back(opened.status(), config.stores);
  std::unique_ptr<InspectedStores> stores = *std::move(opened);
  const uint32_t ranks = stores->ranks().front()->shape().ranks;
  PENSTOCK_TRY_ASSIGN(stored, trainer::parse_trainer_state(stores->ranks().front()->payload().trainer_state));
  if (ranks == 1) stores.reset();
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, stored, {.ranks = ranks}, trainer::cuda_usable));
  take_flags(flags, settings.config.samples);
  PENSTOCK_TRY(find_prompts(settings));
  PENSTOCK_TRY_ASSIGN(found, ranks == 1 ? answers_of_run(session, settings) : answers_of_ranks(*stores, settings));
  Answer answer;
  answer.json = {{"step", found.step}, {"samples", answers_json(settings, found.answers)}};
  answer.text = answers_text(settings, found.answers);
  return answer;
}

}  // namespace penstock::tools
