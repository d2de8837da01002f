// Shared by the verbs of `penstock checkpoint`: finds the stores at the given paths and opens them without writing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "aio/store/tile_store.h"
#include "runtime/engine/ranks/kept_together.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// The stores of all ranks at some folders, open for inspection: nothing is written.
class InspectedStores {
 public:
  // `paths` as given: several, or several in one separated by commas; each a store's folder, or a run's with one
  // inside. Refuses stores of several runs.
  static Result<std::unique_ptr<InspectedStores>> open(const std::vector<std::string>& paths);

  // From the newest step to one that is kept: ranks() are its copies then. The newest itself need not be kept.
  Status go_to(uint64_t step);

  const std::vector<std::unique_ptr<aio::TileStore>>& ranks() const { return ranks_; }
  // Which has the rank's tiles that steps never update: they are in no copy.
  aio::TileStore& never_updated(uint32_t rank) const { return copied_.empty() ? *ranks_[rank] : *copied_[rank]; }
  // In the order of the paths.
  const std::vector<std::string>& folders() const { return folders_; }
  IoEngine& engine() { return *engine_; }
  // For scrubbing.
  std::span<std::byte> memory() const { return memory_; }
  // Of all of them together.
  aio::OpenReport report() const;
  // Of all of them together: what they keep.
  engine::KeptTogether kept() const { return engine::KeptTogether(kept_by_rank()); }

  // Refuses a part of a run's stores.
  Status expect_all_ranks() const;
  // Refuses stores that are at different steps.
  Status expect_one_step() const;

 private:
  Status expect_one_run() const;
  std::vector<engine::KeptSteps> kept_by_rank() const;

  std::vector<std::string> folders_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<aio::HostArena> arena_;
  std::span<std::byte> memory_;
  std::vector<std::unique_ptr<aio::TileStore>> ranks_;
  std::vector<std::unique_ptr<aio::TileStore>> copied_;  // that ranks_ are copies of, if they are
};

// What `checkpoint scrub` answers: corrupt blocks are a failed comparison, unread ones alone a matter of the drive.
Answer answer_to_scrub(const aio::ScrubReport& report, const aio::OpenReport& opened);

}  // namespace penstock::tools
