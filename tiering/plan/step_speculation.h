// StepSpeculation says, for one step of a plan, which updates may run before the verdict, which are done again after
// it, and which writes are speculative: the one place that knows.
//
// In a plan that clips, until the verdict an update is speculative if its step still speculates; else it waits. A tile
// whose state rests in host memory or on a device is updated in place, and so never before the verdict: there would be
// nothing to go back to. An update that would use backward's copy of its weights and cannot run before the verdict is
// *postponed*: its first read, update and write are left out, because the copy cannot stay until the verdict, and it is
// done from its slot afterwards, by the moves of a redo. Its slot may be read before the verdict already.
//
// Pure: it decides, PlanRun acts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

// confirm: gradients are as they were taken. strike: the norm passed the clip, and what was updated speculatively is
// read and updated again. skip: nothing of the step stays.
enum class Verdict : uint8_t { confirm, strike, skip };

class StepSpeculation {
 public:
  // `speculate`: whether the step begins to. `may_be_discarded`: until the verdict, writes leave the version of the
  // step before as it is.
  StepSpeculation(const Plan& plan, bool speculate, bool may_be_discarded);

  const std::optional<Verdict>& verdict() const { return verdict_; }
  bool stopped() const { return stopped_; }

  // Whether the tile's update may run now, if its gradient is here.
  bool may_update(TileId tile) const { return !plan_.clipping || verdict_ || speculates(tile); }
  // Whether some update may.
  bool any_may_update() const { return !plan_.clipping || verdict_ || speculating_; }
  // Whether a write that begins now must be one that a verdict can take back.
  bool write_may_be_taken_back(TileId tile) const {
    // Where gradients are clipped, what rests in memory is updated after the verdict: what is written before it is an
    // earlier step's update, which no verdict of this one takes back.
    return !verdict_ && may_be_discarded_ && !(plan_.clipping && state_in_memory(tile));
  }

  void update_issued(TileId tile) { tiles_[tile].speculated = plan_.clipping && !verdict_; }
  bool was_speculative(TileId tile) const { return tiles_[tile].speculated; }
  void gradient_absent(TileId tile) { tiles_[tile].absent = true; }

  // Whether the tile is postponed where nothing may be updated before the verdict.
  bool postpones(TileId tile) const;
  void postpone(TileId tile) { tiles_[tile].postponed = true; }
  bool is_postponed(TileId tile) const { return tiles_[tile].postponed; }

  // The partial norm has passed the clip: nothing more is updated before the verdict. False if nothing changes.
  bool stop();
  void give(Verdict verdict);

  // After the verdict.
  bool is_redone(TileId tile) const;
  // A speculative update has changed a weight that rests in host memory: it comes back from its old slot.
  bool is_restored(TileId tile) const;

 private:
  struct TileFate {
    bool speculated = false;
    bool postponed = false;
    bool absent = false;
  };

  bool state_in_memory(TileId tile) const { return plan_.placements[tile].is_updated_in_place(); }
  bool speculates(TileId tile) const { return speculating_ && !state_in_memory(tile); }

  const Plan& plan_;
  const bool may_be_discarded_;
  bool speculating_;
  bool stopped_ = false;
  std::optional<Verdict> verdict_;
  std::vector<TileFate> tiles_;
};

}  // namespace penstock
