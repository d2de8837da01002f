#include "tools/train/snapshots.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/penstock/quantity.h"
#include "tools/penstock/verb.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {

engine::KeptTogether kept_of(const TrainingSettings& settings, engine::Ranks* ranks) {
  const engine::RankPlace& place = settings.place;
  engine::KeptSteps here(folders_of_rank(settings.config.stores, place), {.rank = place.rank, .ranks = place.ranks});
  return engine::KeptTogether({std::move(here)}, ranks);
}

Result<std::string> Snapshots::after(engine::StepEngine& engine, uint64_t step, std::optional<double> loss) {
  // Of those that were kept for their loss: the worst last, and of equals the later.
  std::vector<std::pair<double, uint64_t>> best;
  if (best_ > 0 && loss) {
    for (const uint64_t other : kept_.steps()) {
      const Json note = Json::parse(kept_.note_of(other), nullptr, false);
      if (other < step && note.is_object() && note.contains("eval_loss"))
        best.emplace_back(note["eval_loss"].get<double>(), other);
    }
    best.emplace_back(*loss, step);
    std::sort(best.begin(), best.end());
  }
  const auto among_best = [&](uint64_t wanted) {
    const auto end = best.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(best_, best.size()));
    return std::any_of(best.begin(), end, [&](const auto& one) { return one.second == wanted; });
  };
  if (!is_regular(step) && !among_best(step)) return std::string();
  for (const auto& [worse, other] : best) {
    if (other != step && !among_best(other) && !is_regular(other)) PENSTOCK_TRY(kept_.drop(other));
  }
  return keep(engine, step, loss);
}

Result<std::string> Snapshots::before_first(engine::StepEngine& engine) {
  if (!kept_.steps().empty() || engine.steps_done() > 0) return std::string();
  return keep(engine, 0, std::nullopt);
}

Result<std::string> Snapshots::keep(engine::StepEngine& engine, uint64_t step, std::optional<double> loss) {
  PENSTOCK_TRY(engine.settle());
  PENSTOCK_TRY_ASSIGN(bytes,
                      kept_.keep(step, {engine.runs_of_durable_step()}, loss ? Json{{"eval_loss", *loss}}.dump() : ""));
  return text("step ", step, " stays, in ", bytes_text(bytes));
}

}  // namespace penstock::tools
