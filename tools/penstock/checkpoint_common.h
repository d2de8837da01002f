// What the verbs of `penstock checkpoint` share: finding the stores at the paths given, and opening them to look.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/host_arena.h"
#include "aio/make_engine.h"
#include "aio/store/tile_store.h"

namespace penstock::tools {

// The stores of all ranks at some folders, open for inspection: nothing is written.
class InspectedStores {
 public:
  // `paths` as given: several, or several in one separated by commas; each a store's folder, or a run's with one
  // inside.
  static Result<std::unique_ptr<InspectedStores>> open(const std::vector<std::string>& paths);

  const std::vector<std::unique_ptr<aio::TileStore>>& ranks() const { return ranks_; }
  // For scrubbing.
  std::span<std::byte> memory() const { return memory_; }
  std::vector<std::string> notes() const;

 private:
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<aio::HostArena> arena_;
  std::span<std::byte> memory_;
  std::vector<std::unique_ptr<aio::TileStore>> ranks_;
};

}  // namespace penstock::tools
