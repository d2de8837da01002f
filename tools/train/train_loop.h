// TrainLoop takes the steps of a run, and does after each what the configuration asks for: evaluations, samples,
// snapshots, rules about the loss, a line of the log.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "tools/train/run_log.h"
#include "tools/train/run_plan.h"
#include "tools/train/run_report.h"
#include "tools/train/snapshots.h"

namespace penstock::tools {

class TrainLoop {
 public:
  // `session` and `settings` outlive it, and so do `ranks`, where there are several.
  TrainLoop(Session& session, const TrainingSettings& settings, engine::Ranks* ranks,
            std::unique_ptr<trainer::TrainingRun> run, RunLog log, RunPlan plan);

  // Until the last step, a rule ends the run or an interrupt comes.
  Result<Answer> run();

 private:
  // What the process before this one did not come to, after the step that the store holds.
  Status catch_up();
  Status take_step();
  // All that the configuration asks for behind a step, and its line of the log.
  Status end_step(uint64_t step, Json line);
  // In the place of a step: a rule about the loss has ended the run or taken it back.
  Status end_before_step(trainer::LossEvent event);
  Status evaluate(uint64_t step, Json& line);
  Status answer_prompts(uint64_t step, Json& line);
  Status follow_new_plan();
  // Where the disk is full, the run goes on for a while.
  Status add_to_log(const Json& line);
  void note_unless_empty(const std::string& line);

  engine::StepEngine& engine() { return run_->engine(); }
  uint64_t until() const { return settings_.config.max_steps; }
  // Every so many steps, and after the last; 0: never.
  bool is_due(uint64_t every, uint64_t step) const {
    return every > 0 && (step % every == 0 || step == until() || course_.is_over);
  }

  Session& session_;
  const TrainingSettings& settings_;
  engine::Ranks* const ranks_;
  std::unique_ptr<trainer::TrainingRun> run_;
  RunLog log_;
  RunPlan plan_;
  Snapshots snapshots_;
  StepWork work_;
  std::chrono::steady_clock::time_point begin_;  // of the steps
  double beside_steps_s_ = 0;                    // since then: evaluations, samples and snapshots
  Course course_;
  std::vector<trainer::LossEvent> events_;  // that no line of the log has yet
  std::optional<double> held_out_loss_;     // after the last step, where it was evaluated
  bool is_log_late_ = false;                // and the user knows
};

}  // namespace penstock::tools
