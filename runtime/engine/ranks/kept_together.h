// KeptTogether are the steps that a run keeps: KeptSteps of its store or, of several ranks, of each rank's, which stand
// and fall together.
//
// A step of several ranks is kept as a step is committed: every rank copies its own, one barrier carries the verdicts,
// each makes its copy count, and a second barrier ends it. What a kill leaves between the two is on some ranks alone,
// and drop_incomplete() removes it. What a copy replaces is gone before the first barrier, so that a step which all
// ranks have is of one course on all of them.
//
// All ranks call the same verbs in the same order, between steps or while no engine is open.
#pragma once

#include <cstdint>
#include <functional>
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

  // As KeptSteps::keep(); `runs`: of each store here. The bytes that it takes on all ranks.
  using Runs = std::vector<aio::TileStore::FileRun>;
  Result<uint64_t> keep(uint64_t step, const std::vector<Runs>& runs, const std::string& note = {});
  Status drop(uint64_t step);

  // Where a run begins, which may have been killed: removes what not all ranks have. What was removed, for the user.
  Result<std::vector<std::string>> drop_incomplete();

 private:
  Result<std::vector<uint64_t>> by_rank(const std::function<uint64_t(const KeptSteps&)>& number);
  // Waits for all; the refusal of this rank, else of the first that has one.
  Status agreed(const Status& mine);
  // Of all stores here, up to the first that refuses.
  Status each(const std::function<Status(KeptSteps&)>& does);

  std::vector<KeptSteps> here_;
  Ranks* const others_;
};

}  // namespace penstock::engine
