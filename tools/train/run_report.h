// What `penstock train` tells of a run: a line of its log for each step, its forecast, and in the end what was done.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/torch/training_run.h"
#include "tools/penstock/verb.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// What was held out, after a step.
struct Evaluation {
  Evaluation(std::vector<trainer::SetLoss> of_sets, double taken_s);

  std::vector<trainer::SetLoss> sets;
  trainer::StepLoss all;
  double seconds = 0;
};
inline double perplexity_of(const trainer::StepLoss& loss) { return std::exp(loss.mean()); }
// "loss 3.0610, perplexity 21.35 of 230 tokens", and the same of each set where there are several.
std::string words_of(const Evaluation& evaluation);

// What a run has done, for its answer.
struct Course {
  uint64_t first = 0;             // steps before it
  uint64_t taken = 0;             // and by it, those among them that a rollback has taken back
  engine::DriveBytes moved = {};  // before the last rollback
  double loss_first = 0, loss_last = 0;
  double seconds = 0;                         // of the steps alone
  double predicted_s = 0;                     // of all steps that were taken, as each ended; 0: not known
  uint64_t new_plans = 0;                     // that took the place of the first
  std::optional<Evaluation> evaluation = {};  // the last
  bool is_over = false;                       // stopped early
};

// What every step of a plan has to do, to measure steps by.
struct StepWork {
  double tokens = 0;
  // Forward, and twice as much back, or as much where the model's own weights are frozen; what is computed a second
  // time is not counted. 0: not known for this model.
  double flops = 0;
  double most_flops = 0;                  // in a second, of large products in all ranks; 0: not measured
  double compute_s = 0;                   // its passes alone, as the dry step measured them
  uint64_t up_bytes = 0, down_bytes = 0;  // over the link of a device

  // The share of `most_flops` that a step of this length reaches; 0: not known.
  double mfu(double step_s) const { return most_flops > 0 ? flops / step_s / most_flops : 0; }
};
StepWork work_of(const TrainingSettings& settings, const Plan& plan);

// What a step takes at least: its passes alone, or what it moved to and from the drives alone. 0: no rates.
double floor_s(const TrainingSettings& settings, const StepWork& work, const engine::StepReport& report);

// The line of a step.
Json line_of(const TrainingSettings& settings, const StepWork& work, const trainer::TrainingRun::Step& step);
// The same for a terminal, what matters most first. `left_s`: of the run.
std::string progress_of(const TrainingSettings& settings, const StepWork& work, const trainer::TrainingRun::Step& step,
                        double left_s);
// A plan's budget, line by line.
Json budget_json(const Plan& plan);
void add_evaluation(Json& line, const Evaluation& evaluation);

// What `--dry-run` says.
Result<Answer> dry_run_answer(const TrainingSettings& settings);
// What was done. All ranks together.
Result<Answer> answer_of(const TrainingSettings& settings, engine::StepEngine& engine, const Course& course);

}  // namespace penstock::tools
