// What `penstock train` tells of a run: a line of its log for each step, its forecast, and in the end what was done.
#pragma once

#include <cmath>
#include <optional>

#include "runtime/trainer/torch/training_run.h"
#include "tools/penstock/verb.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// What was held out, after a step.
struct Evaluation {
  double loss = 0;
  uint64_t tokens = 0;
  double seconds = 0;

  double perplexity() const { return std::exp(loss); }
};

// What a run has done, for its answer.
struct Course {
  uint64_t first = 0;             // steps before it
  uint64_t taken = 0;             // and by it, those among them that a rollback has taken back
  engine::DriveBytes moved = {};  // before the last rollback
  double loss_first = 0, loss_last = 0;
  double seconds = 0;
  uint64_t new_plans = 0;                     // that took the place of the first
  std::optional<Evaluation> evaluation = {};  // the last
  bool is_over = false;                       // stopped early
};

// The line of a step. `tokens`: of every step.
Json line_of(const trainer::TrainingRun::Step& step, double tokens);
void add_evaluation(Json& line, const Evaluation& evaluation);

// What `--dry-run` says.
Result<Answer> forecast(const TrainingSettings& settings);
// What was done. All ranks together.
Result<Answer> answer_of(const TrainingSettings& settings, engine::StepEngine& engine, const Course& course);

}  // namespace penstock::tools
