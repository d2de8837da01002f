// KeptSteps are copies of a store beside it, one for each step that is to stay: FOLDER/kept/STEP/ on every drive. A
// copy has what steps update, in one slot, and takes as much space; what is frozen stays in the store alone. Where the
// file system shares blocks between files (XFS, btrfs), a copy takes no space and no time of its own at first.
//
// A copy counts once it is complete on every drive; what a crash leaves half-made is not looked at, and is made anew,
// and so is what a store that was there before has left.
// Of several ranks' stores each keeps its own, in FOLDER/kept/rankN/STEP/; which of them count, KeptTogether says.
// The store itself must be at rest, and closed for restore(), which ends with one root: a crash leaves the one step or
// the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "tiering/status.h"

namespace penstock::engine {

// Whose store it is.
struct RankOfRun {
  uint32_t rank = 0;
  uint32_t ranks = 1;
};

// Refuses a step that is not among those, and says which are.
Status refuse_unless_kept(uint64_t step, const std::vector<uint64_t>& kept);

class KeptSteps {
 public:
  explicit KeptSteps(std::vector<std::string> folders, RankOfRun of = {});

  // Ascending.
  std::vector<uint64_t> steps() const;
  // Where copies of a store lie that was there before; none where there are none.
  std::vector<std::string> left_by_others() const;
  // Refuses a step that is not kept, and says which are.
  Status check(uint64_t step) const;
  // Whether the store is as it was when the step was kept: after a rollback, or a write between steps, that of the same
  // number may be another.
  bool is_as_kept(uint64_t step) const;
  // Makes a copy of the store as it is, which is that step's, durable on every drive, and removes what was kept as that
  // step; it counts from publish() on, or is given up. `runs`: its runs_of_durable_step(); `note`: of the caller's, for
  // note_of(). Refused where space is missing; nothing half-made stays behind.
  Status prepare(uint64_t step, std::span<const aio::TileStore::FileRun> runs, const std::string& note);
  Status publish(uint64_t step);
  void abandon(uint64_t step);

  // The copy, for inspection: what steps never update is not in it. Refused where it holds another step than its folder
  // says. REQUIRES: check(step) is ok.
  Result<std::unique_ptr<aio::TileStore>> open_copy(IoEngine& io, uint64_t step) const;
  // Whether restore() will do: opens the store for writing, and reads all of the copy. REQUIRES: stores of two slots or
  // more.
  Status verify(uint64_t step, const aio::ScrubProgress& progress = {}) const;
  Status restore(uint64_t step, const aio::ScrubProgress& progress = {}) const;
  // Of what was kept as that step: EngineState::course.
  Result<uint64_t> course_of(uint64_t step) const;
  // The newest durable step of the store itself.
  Result<uint64_t> step_of_store() const;
  Status drop(uint64_t step);
  // What a crash has left half-made.
  void drop_partial() const;
  // Of several ranks' stores, which go back together: that they are to, on every drive. See KeptTogether.
  Status mark_rollback(uint64_t step) const;
  Status unmark_rollback() const;
  // None where the mark is not on every drive.
  std::optional<uint64_t> marked_rollback() const;
  // What it takes on all drives together.
  uint64_t bytes_of(uint64_t step) const;
  std::string note_of(uint64_t step) const;
  RankOfRun of() const { return of_; }

 private:
  bool is_kept(uint64_t step) const;
  Result<std::unique_ptr<aio::TileStore>> open_in(const std::vector<std::string>& folders, IoEngine& io,
                                                  aio::OpenOptions::Purpose purpose) const;
  std::string places_in(const std::string& folder) const;
  std::string place_of(const std::string& folder, uint64_t step) const;
  std::string partial_of(const std::string& folder, uint64_t step) const;
  std::string mark_in(const std::string& folder) const { return places_in(folder) + "/rollback"; }
  Status copy_into(const std::string& folder, uint64_t step, std::span<const aio::TileStore::FileRun> runs,
                   const std::string& note) const;
  Status replace_files(uint64_t step) const;

  std::vector<std::string> folders_;
  RankOfRun of_;
  std::string file_name_;
};

}  // namespace penstock::engine
