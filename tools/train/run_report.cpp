#include "tools/train/run_report.h"

#include <algorithm>

#include "aio/resident_memory.h"
#include "runtime/trainer/config/effective_config.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"
#include "tools/penstock/update_common.h"
#include "tools/plan/model_config.h"
#include "tools/system/words.h"
#include "tools/train/model_of_run.h"
#include "tools/train/run_plan.h"
#include "tools/train/run_start.h"

namespace penstock::tools {
namespace {

double flops_of(const TrainingSettings& settings) {
  const Result<ModelShape> shape = parse_model_shape(settings.model_json);
  if (!shape.ok()) return 0;
  const double forward =
      static_cast<double>(shape->layers) * shape->block_forward_flops(settings.config.sequence_length) +
      shape->head_forward_flops();
  const double passes = settings.config.lora.rank > 0 ? 2 : 3;
  return passes * forward * static_cast<double>(settings.tokens_of_step());
}

// Of steps that strike again and again, which update behind their verdict. `found_bytes`: by a step on average.
Json taken_back_json(const TrainingSettings& settings, const Plan& plan, double found_bytes) {
  const PlanRequest& request = settings.engine.request;
  if (!request.workload.clipping.may_take_back()) return Json();
  const PredictedSteps struck = predicted_taken_back(plan, request.machine, Verdict::strike, false);
  if (struck.step_s <= 0) return Json();
  const double parameters = static_cast<double>(settings.model.parameters()) / settings.place.ranks;
  return {{"predicted_s", struck.step_s},
          {"read", (struck.read_bytes + struck.found_bytes - found_bytes) / parameters},
          {"written", struck.written_bytes / parameters}};
}

}  // namespace

Json budget_json(const Plan& plan) {
  Json lines = Json::array();
  for (const BudgetLine& line : plan.budget_lines)
    lines.push_back({{"tier", name_of(line.tier)}, {"line", line.name}, {"bytes", line.bytes}});
  return lines;
}

StepWork work_of(const TrainingSettings& settings, const Plan& plan) {
  return {.tokens = static_cast<double>(settings.tokens_of_step()),
          .flops = flops_of(settings),
          .most_flops = settings.product_flops * settings.place.ranks,
          .compute_s = compute_s(plan),
          .up_bytes = plan.bytes_on(Lane::host_to_device),
          .down_bytes = plan.bytes_on(Lane::device_to_host)};
}

double floor_s(const TrainingSettings& settings, const StepWork& work, const engine::StepReport& report) {
  // The report has all ranks' bytes, the machine is this rank's share of it.
  const uint64_t ranks = settings.place.ranks;
  const engine::DriveBytes here{report.read_bytes / ranks, report.written_bytes / ranks};
  const double floor_s = std::max(work.compute_s, drive_floor_s(settings.engine.request.machine, here, 1).value_or(0));
  return std::min(floor_s, report.wall_s);  // both were measured before, and may have become less since
}

Json line_of(const TrainingSettings& settings, const StepWork& work, const trainer::TrainingRun::Step& step) {
  const engine::StepReport& report = step.report;
  const double least_s = floor_s(settings, work, report);
  const double mfu = work.mfu(report.wall_s);
  return {{"step", report.step},
          {"batch", step.batch},
          {"loss", step.loss},
          {"lr", step.learning_rate},
          {"grad_norm", report.gradient_norm},
          {"step_s", report.wall_s},
          {"predicted_s", predicted_json(report.predicted_s)},
          {"floor_share", least_s > 0 ? Json(least_s / report.wall_s) : Json()},
          {"tokens_per_s", work.tokens / report.wall_s},
          {"tflops", work.flops > 0 ? Json(work.flops / report.wall_s / 1e12) : Json()},
          {"mfu", mfu > 0 ? Json(mfu) : Json()},
          {"nvme_read_bytes", report.read_bytes},
          {"nvme_written_bytes", report.written_bytes},
          {"stall_s", stalls_json(report)},
          {"busy_s", busy_json(report)},
          {"rss_bytes", aio::resident_bytes()},
          {"skipped", report.verdict == Verdict::skip},
          {"new_plans", report.new_plans},
          {"loss_scale", step.loss_scale}};
}

Evaluation::Evaluation(std::vector<trainer::SetLoss> of_sets, double taken_s)
    : sets(std::move(of_sets)), seconds(taken_s) {
  for (const trainer::SetLoss& set : sets) all = trainer::sum_of(std::array{all, set.loss});
}

std::string words_of(const Evaluation& evaluation) {
  const auto words = [](const trainer::StepLoss& loss) {
    return text("loss ", fixed(loss.mean(), 4), ", perplexity ", fixed(perplexity_of(loss), 2), " of ", loss.supervised,
                " tokens");
  };
  std::string all = words(evaluation.all);
  if (evaluation.sets.size() < 2) return all;
  for (const trainer::SetLoss& set : evaluation.sets) all += text("; ", set.set, ": ", words(set.loss));
  return all;
}

void add_evaluation(Json& line, const Evaluation& evaluation) {
  line["eval_loss"] = evaluation.all.mean();
  line["eval_perplexity"] = perplexity_of(evaluation.all);
  line["eval_tokens"] = evaluation.all.supervised;
  line["eval_s"] = evaluation.seconds;
  if (evaluation.sets.size() < 2) return;
  Json sets = Json::array();
  for (const auto& [set, loss] : evaluation.sets) {
    sets.push_back(
        {{"set", set}, {"loss", loss.mean()}, {"perplexity", perplexity_of(loss)}, {"tokens", loss.supervised}});
  }
  line["eval_sets"] = std::move(sets);
}

Result<Answer> dry_run_answer(const TrainingSettings& settings) {
  PENSTOCK_TRY_ASSIGN(request, request_of(settings));
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  Answer answer;
  answer.is_for_rank_0 = settings.place.rank != 0;
  std::string budget;
  for (const BudgetLine& line : chosen.plan.budget_lines)
    budget += text("  ", name_of(line.tier), "  ", line.name, "  ", bytes_text(line.bytes), "\n");
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

Result<Answer> answer_of(const TrainingSettings& settings, engine::StepEngine& engine, const Course& course) {
  const double steps = std::max<double>(1, static_cast<double>(course.taken));
  const double step_s = course.seconds / steps;
  const Plan& plan = engine.plan();
  const engine::DriveBytes here = engine.drive_bytes() + course.moved;
  PENSTOCK_TRY_ASSIGN(moved, added_over_ranks(settings, engine, {{}, here.read_bytes, here.written_bytes}));
  // How much is found where updates have left it depends on when the trainer begins its steps.
  const double found_bytes = static_cast<double>(here.found_bytes) / steps;
  const uint64_t planned_reads = plan.bytes_on(Lane::nvme_read) - static_cast<uint64_t>(found_bytes);
  const auto planned_writes = static_cast<uint64_t>(plan.mean_written_bytes(plan.durability));
  PENSTOCK_TRY_ASSIGN(planned, added_over_ranks(settings, engine, {{}, planned_reads, planned_writes}));
  PENSTOCK_TRY_ASSIGN(found, added_over_ranks(settings, engine, {{}, here.found_bytes, 0}));
  const auto parameters = static_cast<double>(settings.model.parameters());
  const double read = static_cast<double>(moved.read_bytes) / steps / parameters;
  const double written = static_cast<double>(moved.written_bytes) / steps / parameters;
  const double tokens_per_s = static_cast<double>(settings.tokens_of_step()) / step_s;
  const bool did_something = course.taken > 0;
  const double predicted_s = did_something ? course.predicted_s / steps : engine.predicted_step_s();
  const Plan forecast = engine.forecast();  // with what ranks take besides

  Answer answer;
  answer.is_for_rank_0 = settings.place.rank != 0;
  answer.json = {
      {"steps", engine.steps_done()},
      {"ranks", settings.place.ranks},
      {"loss_first", did_something ? Json(course.loss_first) : Json()},
      {"loss_last", did_something ? Json(course.loss_last) : Json()},
      {"step_s", did_something ? Json(step_s) : Json()},
      {"predicted_s", predicted_json(predicted_s)},
      {"new_plans", course.new_plans},
      {"floor_s", json_or_null(drive_floor_s(settings.engine.request.machine, here, steps))},
      {"compute_s", compute_s(plan)},
      {"tokens_per_s", did_something ? Json(tokens_per_s) : Json()},
      {"bytes_per_parameter",
       {{"read", read}, {"written", written}, {"found", static_cast<double>(found.read_bytes) / steps / parameters}}},
      {"planned_bytes_per_parameter",
       {{"read", static_cast<double>(planned.read_bytes) / parameters},
        {"written", static_cast<double>(planned.written_bytes) / parameters}}},
      {"planned_when_struck", taken_back_json(settings, forecast, found_bytes)},
      {"peak_rss_bytes", aio::resident_bytes_peak()},
      {"budget_bytes", settings.memory_bytes()},
      {"budget", budget_json(forecast)},
      {"parameters", settings.model.parameters()},
      {"trained_parameters", settings.model.trained_parameters()},
      {"eval_loss", course.evaluation ? Json(course.evaluation->all.mean()) : Json()},
      {"eval_perplexity", course.evaluation ? Json(perplexity_of(course.evaluation->all)) : Json()},
      {"stopped_early", course.is_over},
      {"store", joined(settings.config.stores, ",")},
      {"config", Json::parse(trainer::effective_json(settings.config))}};
  if (!did_something) {
    answer.text = text("nothing to do: the store is at step ", course.first, " already",
                       course.is_over ? ", where the run stopped early" : "", "\n");
    return answer;
  }
  answer.text = text("steps ", course.first + 1, " to ", engine.steps_done(), ": loss ", fixed(course.loss_first, 3),
                     " to ", fixed(course.loss_last, 3), "\n", fixed(step_s, 2), " s a step, ",
                     predicted_s > 0 ? text("predicted ", fixed(predicted_s, 2), " s") : "not predicted", "; ",
                     fixed(tokens_per_s, 0), " tokens/s; ", fixed(read, 2), " B read and ", fixed(written, 2),
                     " B written a parameter and step\n",
                     course.evaluation ? text("held out: loss ", fixed(course.evaluation->all.mean(), 3),
                                              ", perplexity ", fixed(perplexity_of(course.evaluation->all), 2), "\n")
                                       : "",
                     settings.place.ranks > 1 ? "peak memory of rank 0 " : "peak memory ",
                     bytes_text(aio::resident_bytes_peak()), " of ", bytes_text(settings.memory_bytes()), "\n");
  return answer;
}

}  // namespace penstock::tools
