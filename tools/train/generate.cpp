#include "tools/train/generate.h"

#include <algorithm>
#include <filesystem>

#include "tools/train/run_prompts.h"
#include "tools/train/run_start.h"

namespace penstock::tools {

Result<Answer> generate(Session& session, const GenerateFlags& flags) {
  std::error_code unknown;
  const bool is_folder = std::filesystem::is_directory(flags.source, unknown);
  TrainFlags of_run;
  of_run.config = is_folder ? flags.source + "/config.json" : flags.source;
  PENSTOCK_TRY_ASSIGN(prepared, prepare(of_run));
  TrainingSettings& settings = prepared.settings;
  if (!prepared.stored) {
    return Status(Code::kUsage, text("generate: ", settings.config.stores.front(), ": has no store"),
                  text("penstock train ", *of_run.config));
  }
  trainer::SampleConfig& samples = settings.config.samples;
  if (!flags.prompts.empty()) samples.prompts.clear();
  for (const std::string& prompt : flags.prompts)
    samples.prompts.push_back(Json(prompt).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (flags.tokenizer) samples.tokenizer = *flags.tokenizer;
  if (flags.new_tokens) samples.max_new_tokens = std::max<uint64_t>(1, *flags.new_tokens);
  if (flags.temperature) samples.rules.temperature = *flags.temperature;
  if (flags.top_k) samples.rules.top_k = *flags.top_k;
  if (flags.seed) settings.config.seed = *flags.seed;
  PENSTOCK_TRY(find_prompts(settings));
  PENSTOCK_TRY(measure(session, settings));
  PENSTOCK_TRY(refuse_prompts_without_room(settings));
  PENSTOCK_TRY_ASSIGN(run, trainer::TrainingRun::open(settings));
  const uint64_t step = run->engine().steps_done();
  PENSTOCK_TRY_ASSIGN(answers, run->answer(step));
  Answer answer;
  answer.json = {{"step", step}, {"samples", answers_json(settings, answers)}};
  answer.text = answers_text(settings, answers);
  return answer;
}

}  // namespace penstock::tools
