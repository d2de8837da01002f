#include "tools/train/train_loop.h"

#include <chrono>
#include <utility>

#include "runtime/engine/seconds_since.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/update_common.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"
#include "tools/train/loss_events.h"
#include "tools/train/roll_back.h"
#include "tools/train/run_prompts.h"

namespace penstock::tools {
namespace {

using Clock = std::chrono::steady_clock;
using engine::seconds_since;

Result<Evaluation> evaluation_of(trainer::TrainingRun& run) {
  const auto begin = Clock::now();
  PENSTOCK_TRY_ASSIGN(sets, run.evaluate());
  return Evaluation(std::move(sets), seconds_since(begin));
}

// Whether the run stopped early, although steps are left: a root is older than the evaluation of its step.
Result<bool> is_over_already(const TrainingSettings& settings, trainer::TrainingRun& run) {
  const trainer::PatienceRules& patience = settings.config.early_stopping;
  const uint64_t step = run.engine().steps_done();
  const bool was_asked = patience.evaluations > 0 && step > 0 && step < settings.config.max_steps &&
                         step % settings.config.eval_every == 0;
  if (!was_asked) return false;
  PENSTOCK_TRY_ASSIGN(found, evaluation_of(run));
  return trainer::is_over(patience, found.all.mean(), run.patience());
}

}  // namespace

TrainLoop::TrainLoop(Session& session, const TrainingSettings& settings, engine::Ranks* ranks,
                     std::unique_ptr<trainer::TrainingRun> run, RunLog log, RunPlan plan)
    : session_(session),
      settings_(settings),
      ranks_(ranks),
      run_(std::move(run)),
      log_(std::move(log)),
      plan_(std::move(plan)),
      snapshots_(settings, ranks),
      work_(work_of(settings, engine().plan())),
      course_{.first = engine().steps_done()} {}

Result<Answer> TrainLoop::run() {
  PENSTOCK_TRY(plan_.write(engine()));
  run_->give_back_memory();
  if (settings_.place.rank == 0 && engine().steps_done() < until())
    session_.print(text("budget\n", engine().description(), "\n"));
  if (settings_.config.loss_rules.has(trainer::LossAction::rollback)) {
    PENSTOCK_TRY_ASSIGN(kept, snapshots_.before_first(engine()));
    note_unless_empty(kept);
  }
  PENSTOCK_TRY(catch_up());
  begin_ = Clock::now(), beside_steps_s_ = 0;
  Status verdict;
  while (!course_.is_over && engine().steps_done() < until()) {
    PENSTOCK_TRY_ASSIGN(is_asked_to_stop, run_->any(interrupted()));
    if (is_asked_to_stop) {
      PENSTOCK_TRY(engine().settle());
      verdict = Status(Code::kInterrupted, text("interrupted: step ", engine().steps_done(), " is committed"),
                       "run it again to go on from there");
      if (course_.taken == 0) return verdict;
      break;
    }
    PENSTOCK_TRY(take_step());
  }
  PENSTOCK_TRY(engine().settle());
  course_.seconds = seconds_since(begin_) - beside_steps_s_;
  run_->give_back_memory();
  PENSTOCK_TRY_ASSIGN(answer, answer_of(settings_, engine(), course_));
  const Status logged = log_.write_waiting();
  answer.verdict = verdict.ok() ? logged.within("steps are committed, and missing in the log") : verdict;
  return std::move(answer);
}

Status TrainLoop::catch_up() {
  const uint64_t step = engine().steps_done();
  const bool is_left = log_.left() && log_.left()->value("step", uint64_t{0}) == step;
  PENSTOCK_TRY_ASSIGN(is_to_end, run_->any(step > 0 && is_left));  // one rank has the log
  if (is_to_end) return end_step(step, is_left ? *log_.left() : Json::object());
  PENSTOCK_TRY_ASSIGN(is_over, is_over_already(settings_, *run_));
  course_.is_over = is_over;
  if (!snapshots_.is_regular(step)) return Status();
  PENSTOCK_TRY_ASSIGN(kept, snapshots_.after(engine(), step, std::nullopt));
  note_unless_empty(kept);
  return Status();
}

Status TrainLoop::take_step() {
  PENSTOCK_TRY_ASSIGN(step, run_->step());
  for (const trainer::LossEvent& event : step.events) session_.progress.note(words_of(event));
  events_.insert(events_.end(), step.events.begin(), step.events.end());
  if (step.ended_by) return end_before_step(*step.ended_by);

  if (course_.taken++ == 0) course_.loss_first = step.loss;
  course_.loss_last = step.loss;
  course_.predicted_s += step.report.predicted_s;
  if (step.report.new_plans != course_.new_plans) PENSTOCK_TRY(follow_new_plan());
  course_.new_plans = step.report.new_plans;
  const uint64_t number = step.report.step;
  Json line = line_of(settings_, work_, step);
  if (!events_.empty()) line["loss_events"] = events_json(std::exchange(events_, {}));
  PENSTOCK_TRY(end_step(number, std::move(line)));
  if (number % settings_.config.steps_per_print == 0) {
    const auto left = static_cast<double>(until() - number);
    session_.progress.update(
        static_cast<double>(number) / static_cast<double>(until()),
        progress_of(settings_, work_, step, left * seconds_since(begin_) / static_cast<double>(course_.taken)));
  }
  return Status();
}

Status TrainLoop::end_step(uint64_t step, Json line) {
  const trainer::TrainConfig& config = settings_.config;
  const auto begin = Clock::now();
  held_out_loss_.reset();
  if (is_due(config.eval_every, step) || is_due(config.sample_every, step) || snapshots_.is_regular(step))
    log_.hold(line);
  if (is_due(config.eval_every, step)) PENSTOCK_TRY(evaluate(step, line));
  if (is_due(config.sample_every, step)) PENSTOCK_TRY(answer_prompts(step, line));
  if (course_.is_over) {
    line["stopped_early"] = true;
    const std::optional<double>& best = run_->patience().best;
    session_.progress.note(text("stopped early: ", config.early_stopping.evaluations,
                                " evaluations without a lower loss than ", best ? fixed(*best, 4) : "any"));
  }
  PENSTOCK_TRY_ASSIGN(kept, snapshots_.after(engine(), step, held_out_loss_));
  beside_steps_s_ += seconds_since(begin);
  PENSTOCK_TRY(add_to_log(line));
  session_.progress.step(line_text(line));
  note_unless_empty(kept);
  return Status();
}

Status TrainLoop::add_to_log(const Json& line) {
  const Status added = log_.add(line);
  if (added.ok()) {
    is_log_late_ = false;
  } else if (!std::exchange(is_log_late_, true)) {
    session_.progress.note(text("log: ", added.message(), "; its lines wait in memory until they can be written"));
  }
  if (!log_.is_too_long()) return Status();
  PENSTOCK_TRY(engine().settle());
  return added.within(text("step ", engine().steps_done(), " is committed, and the log has no space for more lines"));
}

Status TrainLoop::end_before_step(trainer::LossEvent event) {
  if (event.action != trainer::LossAction::rollback) {
    PENSTOCK_TRY(add_to_log(stopped_json(events_, event)));
    return run_->stop(event);
  }
  course_.moved = course_.moved + engine().drive_bytes();
  auto back = roll_back(session_, settings_, ranks_, std::move(run_), event);
  if (!back.ok() && event.action == trainer::LossAction::stop) PENSTOCK_TRY(add_to_log(stopped_json(events_, event)));
  PENSTOCK_TRY(back.status());
  run_ = *std::move(back);
  session_.progress.note(words_of(event));
  events_.push_back(std::move(event));
  PENSTOCK_TRY_ASSIGN(was_over, is_over_already(settings_, *run_));
  course_.is_over = was_over;
  return Status();
}

Status TrainLoop::evaluate(uint64_t step, Json& line) {
  PENSTOCK_TRY_ASSIGN(found, evaluation_of(*run_));
  add_evaluation(line, found);
  course_.evaluation = found;
  held_out_loss_ = found.all.mean();
  course_.is_over =
      trainer::is_over(settings_.config.early_stopping, *held_out_loss_, run_->patience()) && step < until();
  session_.progress.note(text("step ", step, ": held out: ", words_of(found)));
  return Status();
}

Status TrainLoop::answer_prompts(uint64_t step, Json& line) {
  const auto begin = Clock::now();
  PENSTOCK_TRY_ASSIGN(answers, run_->answer(step));
  line["samples"] = answers_json(settings_, answers);
  line["samples_s"] = seconds_since(begin);
  session_.progress.note(text("step ", step, ": samples\n", answers_text(settings_, answers)));
  return Status();
}

void TrainLoop::note_unless_empty(const std::string& line) {
  if (!line.empty()) session_.progress.note(line);
}

Status TrainLoop::follow_new_plan() {
  work_ = work_of(settings_, engine().plan());
  run_->give_back_memory();
  PENSTOCK_TRY(plan_.write_new(engine()));
  run_->give_back_memory();
  return Status();
}

}  // namespace penstock::tools
