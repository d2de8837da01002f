// LeftOut is a list of batches that a run does not learn from. A batch is what one step takes of the data, and has its
// number in the order of samples, from 1.
//
// Which batch a step takes depends on the list and the step's number alone: step n takes the n-th batch that is not
// on the list. So a run that leaves a batch out on its way is, from there on, the one that left it out from the start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::trainer {

class LeftOut {
 public:
  static constexpr uint64_t kNumberMost = uint64_t{1} << 53;  // of a batch
  static constexpr size_t kRunsMost = 256;                    // of a list in a config: every root keeps it

  // Batches [first, last].
  struct Run {
    uint64_t first = 0, last = 0;

    bool operator==(const Run&) const = default;
  };

  // REQUIRES: 1 <= first <= last <= kNumberMost.
  void add(Run run);
  void add(const LeftOut& other);

  bool empty() const { return runs_.empty(); }
  // Ascending, with batches between any two that are not on the list.
  const std::vector<Run>& runs() const { return runs_; }
  bool has(uint64_t batch) const;
  // REQUIRES: step >= 1.
  uint64_t batch_of(uint64_t step) const;
  // How many of the first `batch` batches are on the list.
  uint64_t count_up_to(uint64_t batch) const;
  LeftOut up_to(uint64_t batch) const;
  LeftOut after(uint64_t batch) const;

  bool operator==(const LeftOut&) const = default;

 private:
  std::vector<Run> runs_;
};

// "[3,[17,20]]": batch 3, and those from 17 to 20.
std::string json_of(const LeftOut& batches);
// What is wrong is a usage error, and said of the list as a whole. `most`: runs.
Result<LeftOut> parse_left_out(const std::string& json, size_t most = LeftOut::kRunsMost);

}  // namespace penstock::trainer
