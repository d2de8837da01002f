// KeptTogether are the steps that a run keeps: KeptSteps of its store or, of several ranks, of each rank's, which stand
// and fall together.
//
// A step of several ranks is kept as a step is committed: every rank copies its own, one barrier carries the verdicts,
// each makes its copy count, and a second barrier ends it. What a kill leaves between the two is on some ranks alone,
// and drop_incomplete() removes it. What a copy replaces is gone before the first barrier, so that a step which all
// ranks have is of one course on all of them.
//
// They go back to a step together as well, though each store by a root of its own: first every rank marks that it is
// to, and once all have, each goes back, and then takes its mark away. All copies are read before the first mark, so
// that a damaged one leaves all stores as they are. Where a kill leaves the marks of all, some
// stores may have gone back, and finish_rollback() takes all of them there; where marks are missing, none has begun or
// all are there.
//
// All ranks call the same verbs in the same order, between steps or while no engine is open.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/kept_steps.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

class KeptTogether {
 public:
  // `here`: of this rank's store, where the others, which outlive it, have theirs; or of all stores of the run, in the
  // order of ranks.
  explicit KeptTogether(std::vector<KeptSteps> here, Ranks* others = nullptr)
      : here_(std::move(here)), others_(others) {}

  // That all have here; ascending.
  std::vector<uint64_t> steps() const;
  Status check(uint64_t step) const { return refuse_unless_kept(step, steps()); }
  std::string note_of(uint64_t step) const { return here_.front().note_of(step); }
  // Here, on all drives together.
  uint64_t bytes_of(uint64_t step) const;
  // Of the first store here.
  Result<uint64_t> course_of(uint64_t step) const { return here_.front().course_of(step); }

  // As KeptSteps::keep(); `runs`: of each store here. The bytes that it takes on all ranks.
  using Runs = std::vector<aio::TileStore::FileRun>;
  Result<uint64_t> keep(uint64_t step, const std::vector<Runs>& runs, const std::string& note = {});
  Status drop(uint64_t step);
  // While no engine is open: takes all stores back to a step that is kept.
  Status restore(uint64_t step, const aio::ScrubProgress& progress = {});

  // Where a run begins, before its engine is open: ends a restore() that was cut short. The step that it went to; none
  // where there was nothing to be done.
  Result<std::optional<uint64_t>> finish_rollback(const aio::ScrubProgress& progress = {});
  // What finish_rollback() would go to, as far as is seen from here.
  std::optional<uint64_t> unfinished_rollback() const;
  // Where new stores are made: what was under way with those before is nothing to them.
  Status forget_rollback();
  std::vector<std::string> left_by_others() const { return here_.front().left_by_others(); }
  // Where a run begins, which may have been killed: removes what not all ranks have. What was removed, for the user.
  Result<std::vector<std::string>> drop_incomplete();

 private:
  Status verify_together(uint64_t step);
  // Of a step that all are marked for and verify() refuses: a refusal.
  Status give_up_rollback(uint64_t step, const Status& why);
  // Of all that are marked.
  Status go_back(uint64_t step, const aio::ScrubProgress& progress);
  Result<std::vector<uint64_t>> by_rank(const std::function<uint64_t(const KeptSteps&)>& number);
  // Waits for all; the refusal of this rank, else of the first that has one.
  Status agreed(const Status& mine);
  // Of all stores here, up to the first that refuses.
  Status each(const std::function<Status(KeptSteps&)>& does);

  std::vector<KeptSteps> here_;
  Ranks* const others_;
};

}  // namespace penstock::engine
