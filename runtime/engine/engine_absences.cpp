// Gradients that are absent: what is told of them, and what the update leaves untouched for it.
#include <algorithm>

#include "runtime/engine/engine_waits.h"

namespace penstock::engine {

// Whose gradient is complete: the others have none, which the update is told. With the last gradient of a unit all is
// known that its updates leave out, and none of them has begun.
std::vector<TileId> Engine::tiles_to_update(uint32_t unit) {
  std::vector<TileId> tiles, untouched;
  const std::vector<bool>& skipped = skipped_[unit].parameters;
  const bool all = std::find(skipped.begin(), skipped.end(), true) == skipped.end();
  const std::vector<ParameterRun> runs =
      parameter_runs(options_.request.workload.units[unit], options_.request.workload.form);
  auto run = runs.begin();
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const uint64_t first = plan_->tiles[tile].first_element, end = first + plan_->tiles[tile].elements;
    while (run->end_element <= first) ++run;
    bool keeps = is_untouched(unit, *run);
    for (auto other = run; keeps && other->end_element < end;) keeps = is_untouched(unit, *++other);
    (keeps ? untouched : tiles).push_back(tile);
  }
  if (all) return tiles;
  thread_->mailbox().post([this, unit, numbers = numbers_of(begin_, unit)]() mutable {
    core_->executor().set_numbers(unit, std::move(numbers));
  });
  skip_tiles(untouched);
  return tiles;
}

void Engine::skip_tiles(const std::vector<TileId>& tiles) {
  for (TileId tile : tiles) {
    const Tile& shape = plan_->tiles[tile];
    const auto first = squares_[shape.unit].begin() + static_cast<ptrdiff_t>(shape.first_element / kBlockElements);
    std::fill_n(first, ceil_div(shape.elements, kBlockElements), 0.0);
  }
  thread_->ask([&] {
    for (TileId tile : tiles) {
      if (core_->executor().status().ok()) core_->executor().gradient_absent(tile);
    }
    return true;
  });
}

void Engine::skip_all_tiles(uint32_t unit) {
  std::vector<TileId> tiles;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) tiles.push_back(tile);
  skip_tiles(tiles);
}

Status Engine::absent_gradient(uint32_t unit, Absent absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "absent_gradient"));
  const std::vector<Unit>& units = options_.request.workload.units;
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "absent gradient: unit " + why); };
  if (unit >= units.size()) return refuse(text(unit, " of ", units.size()));
  const Unit& shape = units[unit];
  if (!shape.trainable) return refuse(shape.name + " is frozen");
  PENSTOCK_TRY(expect_no_arriving("absent gradient", unit));
  if (std::string why = intake_->why_not_absent(unit); !why.empty()) return refuse(shape.name + why);
  // What its passes do not give is zero, and complete with the last of them.
  if (absent == Absent::zero && options_.request.workload.scope == StepScope::training) return Status();
  intake_->give_up(unit);
  if (downloaded_intake_) downloaded_intake_->give_up(unit);
  if (absent == Absent::zero) {
    return as_intake([&] { return hand_over(unit, [&](const auto& tiles) { intake_->finish(unit, {}, tiles); }); });
  }
  skipped_[unit].whole = true;
  return as_intake([&] {
    skip_all_tiles(unit);
    return thread_->ask([&] { return core_->executor().status(); });
  });
}

Status Engine::absent_gradient(ParameterId id, Absent absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "absent_gradient"));
  PENSTOCK_TRY(check_parameter("absent gradient", id));
  PENSTOCK_TRY(expect_no_arriving("absent gradient", id.unit));
  const Unit& unit = options_.request.workload.units[id.unit];
  if (arriving_) {
    return Status(Code::kUsage, text("absent gradient: of the gradient of unit ", unit.name, " a part has come"),
                  "declare parameters absent before the first part, or open the engine with gradient_in_parts");
  }
  if (absent == Absent::skip) PENSTOCK_TRY(refuse_shared_scales(unit, id.parameter));
  return as_intake([&] {
    PENSTOCK_TRY_ASSIGN(completes, intake_->give_up(id.unit, id.parameter));
    Skipped& skipped = skipped_[id.unit];
    skipped.parameters[id.parameter] = absent == Absent::skip;
    // Without any of its parameters nothing is left of it to update.
    skipped.whole = std::find(skipped.parameters.begin(), skipped.parameters.end(), false) == skipped.parameters.end();
    if (completes) completed_.push_back(id.unit);
    return has_acquired_ ? Status() : hand_over_completed();
  });
}

// Elements that have one scale are all updated, or none is.
Status Engine::refuse_shared_scales(const Unit& unit, uint32_t number) const {
  const StateForm& form = options_.request.workload.form;
  if (form.moments != MomentForm::int8) return Status();
  uint64_t begin = 0;
  for (const ParameterRun& run : parameter_runs(unit, form)) {
    const bool is_cut = begin % kMomentBlockElements != 0 ||
                        (run.end_element % kMomentBlockElements != 0 && run.end_element != unit.elements);
    begin = run.end_element;
    if (run.parameter != number || !is_cut) continue;
    return Status(Code::kUsage,
                  text("absent gradient: parameter ", unit.parameters[number].name, " of unit ", unit.name,
                       ": some of its int8 moments share a scale with a neighbour's"),
                  text("let parameters begin at multiples of ", kMomentBlockElements, " elements"));
  }
  return Status();
}

}  // namespace penstock::engine
