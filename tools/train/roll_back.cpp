#include "tools/train/roll_back.h"

#include <algorithm>

#include "tools/penstock/nvme_common.h"
#include "tools/train/snapshots.h"

namespace penstock::tools {

Result<std::unique_ptr<trainer::TrainingRun>> roll_back(Session& session, const TrainingSettings& settings,
                                                        engine::Ranks* ranks, std::unique_ptr<trainer::TrainingRun> run,
                                                        trainer::LossEvent& event) {
  engine::KeptTogether kept = kept_of(settings, ranks);
  const std::vector<uint64_t> steps = kept.steps();
  // Those behind are of a course that was given up.
  const auto behind = std::upper_bound(steps.begin(), steps.end(), run->engine().steps_done());
  if (behind == steps.begin()) {
    const Status stopped = run->stop(event);
    event.action = trainer::LossAction::stop;
    return Status(stopped.code(), text(stopped.message(), "; the store has no snapshot to go back to"),
                  "`penstock checkpoint snapshot` takes one");
  }
  const uint64_t step = *std::prev(behind);
  trainer::TrainingRun::Experience experience = run->experience();
  const uint64_t first = step == 0 ? 1 : experience.left_out.batch_of(step) + 1;
  run.reset();
  PENSTOCK_TRY(kept.restore(step, ticking(session, "roll back")));
  PENSTOCK_TRY_ASSIGN(back, trainer::TrainingRun::open(settings, ranks));
  experience.left_out.add({first, event.batch});
  acted(settings.config.loss_rules, event.action, event.step, experience.rules);
  back->take_along(std::move(experience));
  event.back_to = step;
  event.first_left_out = first;
  return std::move(back);
}

}  // namespace penstock::tools
