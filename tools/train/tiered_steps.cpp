#include "tools/train/tiered_steps.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {

Result<TieredSteps> take_tiered_steps(const TrainingSettings& settings, uint64_t steps, const Tick& tick,
                                      engine::Ranks* ranks) {
  PENSTOCK_TRY(make_store(settings, aio::CreateOptions::Existing::replace, no_tick, ranks));
  PENSTOCK_TRY_ASSIGN(run, trainer::TrainingRun::open(settings, ranks));
  TieredSteps taken{.run = std::move(run), .losses = {}};
  const uint64_t every = settings.config.eval_every;
  while (taken.losses.size() < steps) {
    PENSTOCK_TRY(tick(static_cast<double>(taken.losses.size()) / static_cast<double>(steps)));
    PENSTOCK_TRY_ASSIGN(step, taken.run->step());
    if (step.ended_by) return taken.run->stop(*step.ended_by);
    taken.losses.push_back(step.loss);
    taken.struck += step.report.verdict == Verdict::strike;
    taken.skipped += step.report.verdict == Verdict::skip;
    if (every > 0 && taken.losses.size() % every == 0) PENSTOCK_TRY(taken.run->evaluate().status());
  }
  return taken;
}

}  // namespace penstock::tools
