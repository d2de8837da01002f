// RateWatch says when the drives have not given what a plan was made with, for so long that another plan may be faster.
// Pure: it is told what was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tiering/tier.h"

namespace penstock {

// When another plan is looked for, and when it takes over.
struct NewPlanRule {
  double off_by = 0.25;                // of the rates that the plan was made with
  uint32_t steps = 3;                  // one after another, all of them too slow or all too fast
  uint64_t least_bytes = 32 * kMiB;    // of a step's under load: the rate of less says nothing, and changes nothing
  double least_run_s = 0.1;            // of load without a break: after a pause drives are faster for a moment
  double faster_by = 0.03;             // of a step's time
  uint32_t repaid_within_steps = 100;  // what the change itself takes
};

// What the drives have moved while they had enough to do, and how long they had.
struct DrivesUnderLoad {
  double read_bytes = 0, written_bytes = 0;
  double seconds = 0;

  double bytes() const { return read_bytes + written_bytes; }
  double read_share() const { return bytes() > 0 ? read_bytes / bytes() : 1; }
  DrivesUnderLoad operator+(const DrivesUnderLoad& other) const {
    return {read_bytes + other.read_bytes, written_bytes + other.written_bytes, seconds + other.seconds};
  }
  DrivesUnderLoad operator-(const DrivesUnderLoad& earlier) const {
    return {read_bytes - earlier.read_bytes, written_bytes - earlier.written_bytes, seconds - earlier.seconds};
  }
};

class RateWatch {
 public:
  explicit RateWatch(NewPlanRule rule) : rule_(rule) {}

  // `expected_gbps`: the rate that the plan was made with, for the step's share of reads. The part of it that the
  // drives have given, in the median of the last steps, once all of them were off to the same side; then it starts
  // anew.
  std::optional<double> learn(double expected_gbps, const DrivesUnderLoad& step);

 private:
  const NewPlanRule rule_;
  std::vector<double> shares_;  // of the last steps, all below 1 or all above
};

}  // namespace penstock
