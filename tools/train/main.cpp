// penstock-trainer: the part of the command that stands on LibTorch. `penstock train` starts it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "aio/resident_memory.h"
#include "runtime/trainer/config/effective_config.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"
#include "tools/penstock/update_common.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"
#include "tools/train/generate.h"
#include "tools/train/run_prompts.h"
#include "tools/train/run_start.h"
#include "tools/train/snapshots.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

class Log {
 public:
  static Result<Log> open(const std::string& folder) {
    Log log;
    if (folder.empty()) return Result<Log>(std::move(log));
    log.file_.open(folder + "/log.jsonl", std::ios::app);
    if (!log.file_)
      return errno_status(text("--run: ", folder, "/log.jsonl"), errno, "a folder that may be written to");
    return Result<Log>(std::move(log));
  }
  void add(const Json& line) {
    // What a model writes may end within a character.
    if (file_.is_open()) file_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }

 private:
  std::ofstream file_;
};

// What was held out, after a step.
struct Evaluation {
  double loss = 0;
  uint64_t tokens = 0;
  double seconds = 0;

  double perplexity() const { return std::exp(loss); }
};

Result<Evaluation> evaluate(trainer::TrainingRun& run) {
  const auto begin = std::chrono::steady_clock::now();
  PENSTOCK_TRY_ASSIGN(loss, run.evaluate());
  return Evaluation{loss.mean(), loss.supervised,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

// What the model answered, after a step.
struct Answers {
  std::vector<trainer::Continuation> found;
  double seconds = 0;
};

Result<Answers> answer(trainer::TrainingRun& run, uint64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  PENSTOCK_TRY_ASSIGN(found, run.answer(step));
  return Answers{std::move(found), std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

Json json_of(const trainer::TrainingRun::Step& step, const std::optional<Evaluation>& evaluation, double tokens) {
  const engine::StepReport& report = step.report;
  Json line = {{"step", report.step},
               {"loss", step.loss},
               {"lr", step.learning_rate},
               {"grad_norm", report.gradient_norm},
               {"step_s", report.wall_s},
               {"predicted_s", predicted_json(report.predicted_s)},
               {"tokens_per_s", tokens / report.wall_s},
               {"nvme_read_bytes", report.read_bytes},
               {"nvme_written_bytes", report.written_bytes},
               {"stall_s", stalls_json(report)},
               {"rss_bytes", aio::resident_bytes()},
               {"skipped", report.verdict == Verdict::skip},
               {"new_plans", report.new_plans},
               {"loss_scale", step.loss_scale}};
  if (evaluation) {
    line["eval_loss"] = evaluation->loss;
    line["eval_perplexity"] = evaluation->perplexity();
    line["eval_tokens"] = evaluation->tokens;
    line["eval_s"] = evaluation->seconds;
  }
  return line;
}

Json budget_json(const Plan& plan) {
  Json lines = Json::array();
  for (const BudgetLine& line : plan.budget_lines)
    lines.push_back({{"tier", name_of(line.tier)}, {"line", line.name}, {"bytes", line.bytes}});
  return lines;
}

// What `--dry-run` says.
Result<Answer> forecast(const TrainingSettings& settings) {
  PlanRequest request = settings.engine.request;
  if (settings.place.ranks > 1) {
    PENSTOCK_TRY_ASSIGN(of_rank, engine::RankedEngine::request_of(settings.ranked(), settings.place));
    request = std::move(of_rank);
  }
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  Answer answer;
  answer.is_for_rank_0 = settings.place.rank != 0;
  std::string budget;
  for (const BudgetLine& line : chosen.plan.budget_lines)
    budget += text("  ", name_of(line.tier), "  ", line.name, ": ", bytes_text(line.bytes), "\n");
  const bool has_rates = !settings.engine.request.machine.drives.empty();
  const double step_s = has_rates ? chosen.step_s() : 0;
  const std::string config = trainer::effective_json(settings.config);
  const auto parameters = static_cast<double>(settings.model.parameters());
  const Plan& plan = chosen.plan;
  const double read = static_cast<double>(plan.read_bytes()) / parameters;
  const double written = plan.mean_written_bytes(plan.durability) / parameters;
  const trainer::GenerationBytes generation =
      trainer::generation_bytes(settings.model, settings.prompts.prompts, settings.config.samples.max_new_tokens);
  answer.json = {{"dry_run", true},
                 {"steps", settings.config.max_steps},
                 {"parameters", settings.model.parameters()},
                 {"trained_parameters", settings.model.trained_parameters()},
                 {"predicted_s", predicted_json(step_s)},
                 {"bytes_per_parameter", {{"read", read}, {"written", written}}},
                 {"budget_bytes", settings.engine.request.budgets.host_bytes},
                 {"budget", budget_json(chosen.plan)},
                 {"samples_bytes", generation.all},
                 {"config", Json::parse(config)}};
  answer.text =
      text("config\n", config, "\nbudget\n", budget, parameters_text(settings.model), ", ", settings.config.max_steps,
           " steps of ", settings.tokens_of_step(), " tokens; ",
           has_rates ? text("predicted ", fixed(step_s, 2), " s a step; ") : "", fixed(read, 2), " B read and ",
           fixed(written, 2), " B written a parameter and step\nnothing was changed: this was a dry run\n");
  return answer;
}

// The store's folders, made where they are missing; then the run is measured, made or resumed.
Result<std::unique_ptr<trainer::TrainingRun>> open_run(Session& session, const TrainFlags& flags,
                                                       const Prepared& prepared, engine::Ranks* ranks) {
  const TrainingSettings& settings = prepared.settings;
  if (!prepared.stored) {
    PENSTOCK_TRY(make_store(settings,
                            flags.force ? aio::CreateOptions::Existing::replace : aio::CreateOptions::Existing::refuse,
                            ticking(session, "make the store"), ranks));
  }
  PENSTOCK_TRY_ASSIGN(run, trainer::TrainingRun::open(settings, ranks));
  for (const std::string& remark : run->engine().remarks()) session.progress.note("store: " + remark);
  if (prepared.stored) {
    for (const std::string& change : changes_since(settings, *prepared.stored))
      session.progress.note("config: changed: " + change);
  }
  if (run->engine().steps_done() > 0) session.progress.note(text("resuming after step ", run->engine().steps_done()));
  return std::move(run);
}

// What a run has done, for its answer.
struct Course {
  uint64_t first = 0;  // steps before it
  double loss_first = 0, loss_last = 0;
  double seconds = 0;
  uint64_t new_plans = 0;                     // that took the place of the first
  std::optional<Evaluation> evaluation = {};  // the last
  bool is_over = false;                       // stopped early
};

// All ranks together.
Result<Answer> answer_of(const TrainingSettings& settings, trainer::StepEngine& engine, const Course& course) {
  const double steps = std::max<double>(1, static_cast<double>(engine.steps_done() - course.first));
  const double step_s = course.seconds / steps;
  const Plan& plan = engine.plan();
  const engine::Moved here = engine.moved();
  PENSTOCK_TRY_ASSIGN(moved, added_over_ranks(settings, engine, {{}, here.read_bytes, here.written_bytes}));
  PENSTOCK_TRY_ASSIGN(
      planned,
      added_over_ranks(settings, engine,
                       {{}, plan.read_bytes(), static_cast<uint64_t>(plan.mean_written_bytes(plan.durability))}));
  const auto parameters = static_cast<double>(settings.model.parameters());
  const double read = static_cast<double>(moved.read_bytes) / steps / parameters;
  const double written = static_cast<double>(moved.written_bytes) / steps / parameters;
  const double tokens_per_s = static_cast<double>(settings.tokens_of_step()) / step_s;
  const double predicted_s = engine.predicted_step_s();
  const bool did_something = course.first < engine.steps_done();

  Answer answer;
  answer.is_for_rank_0 = settings.place.rank != 0;
  answer.json = {{"steps", engine.steps_done()},
                 {"ranks", settings.place.ranks},
                 {"loss_first", did_something ? Json(course.loss_first) : Json()},
                 {"loss_last", did_something ? Json(course.loss_last) : Json()},
                 {"step_s", did_something ? Json(step_s) : Json()},
                 {"predicted_s", predicted_json(predicted_s)},
                 {"new_plans", course.new_plans},
                 {"floor_s", json_or_null(drive_floor_s(settings.engine.request.machine, here, steps))},
                 {"tokens_per_s", did_something ? Json(tokens_per_s) : Json()},
                 {"bytes_per_parameter", {{"read", read}, {"written", written}}},
                 {"planned_bytes_per_parameter",
                  {{"read", static_cast<double>(planned.read_bytes) / parameters},
                   {"written", static_cast<double>(planned.written_bytes) / parameters}}},
                 {"peak_rss_bytes", aio::resident_bytes_peak()},
                 {"budget_bytes", settings.memory_bytes()},
                 {"budget", budget_json(plan)},
                 {"parameters", settings.model.parameters()},
                 {"trained_parameters", settings.model.trained_parameters()},
                 {"eval_loss", course.evaluation ? Json(course.evaluation->loss) : Json()},
                 {"eval_perplexity", course.evaluation ? Json(course.evaluation->perplexity()) : Json()},
                 {"stopped_early", course.is_over},
                 {"store", joined(settings.config.stores, ",")},
                 {"config", Json::parse(trainer::effective_json(settings.config))}};
  if (!did_something) {
    answer.text = text("nothing to do: the store is at step ", course.first, " already",
                       course.is_over ? ", where the run stopped early" : "", "\n");
    return answer;
  }
  answer.text = text("budget\n", engine.description(), "\nsteps ", course.first + 1, " to ", engine.steps_done(),
                     ": loss ", fixed(course.loss_first, 3), " to ", fixed(course.loss_last, 3), "\n", fixed(step_s, 2),
                     " s a step, ", predicted_s > 0 ? text("predicted ", fixed(predicted_s, 2), " s") : "not predicted",
                     "; ", fixed(tokens_per_s, 0), " tokens/s; ", fixed(read, 2), " B read and ", fixed(written, 2),
                     " B written a parameter and step\n",
                     course.evaluation ? text("held out: loss ", fixed(course.evaluation->loss, 3), ", perplexity ",
                                              fixed(course.evaluation->perplexity(), 2), "\n")
                                       : "",
                     settings.place.ranks > 1 ? "peak memory of rank 0 " : "peak memory ",
                     bytes_text(aio::resident_bytes_peak()), " of ", bytes_text(settings.memory_bytes()), "\n");
  return answer;
}

Result<Answer> train(Session& session, const TrainFlags& flags) {
  PENSTOCK_TRY_ASSIGN(prepared, prepare(flags));
  TrainingSettings& settings = prepared.settings;
  if (settings.config.sample_every > 0) PENSTOCK_TRY(find_prompts(settings));
  const bool speaks = settings.place.rank == 0;  // and keeps the log
  if (!speaks) session.progress.silence();
  MadeFolders made;
  if (speaks) {
    for (const std::string& folder : settings.config.stores) PENSTOCK_TRY(made.make(folder));
    PENSTOCK_TRY(refuse_twins("--store", settings.config.stores));
  }
  settings.engine.on_new_plan = [&session](const std::string& line) { session.progress.note(line); };
  const uint64_t shared_bytes = settings.place.ranks == 1 ? 0 : shared_bytes_of(settings);
  PENSTOCK_TRY_ASSIGN(ranks, meet_others(settings, shared_bytes));
  PENSTOCK_TRY(measure(session, settings, ranks.get()));
  PENSTOCK_TRY(refuse_prompts_without_room(settings));
  if (flags.dry_run) return forecast(settings);
  if (!prepared.stored) session.progress.note("config: " + trainer::effective_json(settings.config));
  if (speaks) PENSTOCK_TRY(write_run_config(settings));
  PENSTOCK_TRY_ASSIGN(log, Log::open(speaks ? settings.config.run : ""));
  PENSTOCK_TRY_ASSIGN(run, open_run(session, flags, prepared, ranks.get()));

  const uint64_t until = settings.config.max_steps;
  const auto tokens = static_cast<double>(settings.tokens_of_step());
  Snapshots snapshots(settings.config);
  Course course{.first = run->engine().steps_done()};
  const auto begin = std::chrono::steady_clock::now();
  const trainer::PatienceRules& patience = settings.config.early_stopping;
  bool is_over = false;  // although steps are left
  if (patience.evaluations > 0 && course.first > 0 && course.first < until &&
      course.first % settings.config.eval_every == 0) {
    // A root is older than the evaluation of its step.
    PENSTOCK_TRY_ASSIGN(found, evaluate(*run));
    is_over = trainer::is_over(patience, found.loss, run->patience());
  }
  while (!is_over && run->engine().steps_done() < until) {
    PENSTOCK_TRY_ASSIGN(is_asked_to_stop, run->any(interrupted()));
    if (is_asked_to_stop) {
      PENSTOCK_TRY(run->engine().settle());
      return Status(Code::kInterrupted,
                    text("interrupted: on request: step ", run->engine().steps_done(), " is committed"),
                    "run it again to go on from there");
    }
    PENSTOCK_TRY_ASSIGN(step, run->step());
    if (step.report.step == course.first + 1) course.loss_first = step.loss;
    course.loss_last = step.loss;
    course.new_plans = step.report.new_plans;
    const uint64_t every = settings.config.eval_every;
    std::optional<Evaluation> evaluation;
    if (every > 0 && (step.report.step % every == 0 || step.report.step == until)) {
      PENSTOCK_TRY_ASSIGN(found, evaluate(*run));
      evaluation = course.evaluation = found;
      is_over = trainer::is_over(patience, found.loss, run->patience()) && step.report.step < until;
      session.progress.note(text("step ", step.report.step, ": held out: loss ", fixed(found.loss, 4), ", perplexity ",
                                 fixed(found.perplexity(), 2), " of ", found.tokens, " tokens"));
    }
    Json line = json_of(step, evaluation, tokens);
    const uint64_t sample_every = settings.config.sample_every;
    if (sample_every > 0 && (step.report.step % sample_every == 0 || step.report.step == until || is_over)) {
      PENSTOCK_TRY_ASSIGN(answers, answer(*run, step.report.step));
      line["samples"] = answers_json(settings, answers.found);
      line["samples_s"] = answers.seconds;
      session.progress.note(text("step ", step.report.step, ": samples\n", answers_text(settings, answers.found)));
    }
    if (is_over) {
      line["stopped_early"] = true;
      session.progress.note(text("stopped early: ", patience.evaluations, " evaluations without a lower loss than ",
                                 run->patience().best ? fixed(*run->patience().best, 4) : "any"));
    }
    log.add(line);
    PENSTOCK_TRY_ASSIGN(kept, snapshots.after(run->engine(), step.report.step,
                                              evaluation ? std::optional(evaluation->loss) : std::nullopt));
    if (!kept.empty()) session.progress.note(kept);
    if (step.report.step % settings.config.steps_per_print == 0) {
      session.progress.update(static_cast<double>(step.report.step) / static_cast<double>(until),
                              text("step ", step.report.step, ", loss ", fixed(step.loss, 3), ", ",
                                   fixed(tokens / step.report.wall_s, 0), " tokens/s"));
    }
  }
  PENSTOCK_TRY(run->engine().settle());
  course.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  course.is_over = is_over;
  return answer_of(settings, run->engine(), course);
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) {
  penstock::tools::watch_for_interrupts();
  return penstock::tools::run_command(
      {penstock::tools::train_verb_with(penstock::tools::train), penstock::tools::verify_training_verb(),
       penstock::tools::generate_verb_with(penstock::tools::generate)},
      {argv + 1, argv + argc});
}
