// KeptSteps are copies of a store beside it, one for each step that is to stay: FOLDER/kept/STEP/ on every drive. Where
// the file system shares blocks between files (XFS, btrfs), a copy takes no space and no time of its own at first.
//
// A copy counts once it is complete on every drive; what a crash leaves half-made is not looked at, and is made anew.
// The store itself must be at rest, and closed for restore().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::engine {

class KeptSteps {
 public:
  explicit KeptSteps(std::vector<std::string> folders) : folders_(std::move(folders)) {}

  // Ascending.
  std::vector<uint64_t> steps() const;
  // Refuses a step that is not kept, and says which are.
  Status check(uint64_t step) const;
  Status keep(uint64_t step);
  Status restore(uint64_t step) const;
  Status drop(uint64_t step);

 private:
  bool is_kept(uint64_t step) const;
  std::string place_of(const std::string& folder, uint64_t step) const;

  std::vector<std::string> folders_;
};

}  // namespace penstock::engine
