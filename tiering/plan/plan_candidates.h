// What a search over plans may try: the choices that a request leaves open, each made in one way or another.
#pragma once

#include <vector>

#include "tiering/plan/planner.h"

namespace penstock {

struct Candidate {
  PlanChoices choices;
  // What it is planned for: a plan for a smaller budget may be the faster one, because what rests in host memory is
  // written through by durable steps, and updated after the verdict where gradients are clipped.
  double host_budget_share = 1;

  bool operator==(const Candidate& other) const;
};

class CandidateSpace {
 public:
  // `tile_factor`: how many times as large as usual tiles are. Where they are larger, there are fewer windows for as
  // many bytes, and host memory is larger by what these take more, and smaller by what tables take less: the plan keeps
  // as much there as with usual tiles.
  // Whether the drives have room is then not looked at. REQUIRES: `request` outlives this.
  explicit CandidateSpace(const PlanRequest& request, uint64_t tile_factor = 1);

  PlanRequest request_of(const Candidate& candidate) const;

  // Of each way to have activations again, with as large a group of micro-batches as fits: it moves the fewest bytes.
  // With as much state in host memory as fits, and with none; of each with as many units on the device as fit, and with
  // none. Where nothing fits, one that says why.
  std::vector<Candidate> beginnings() const;

  // Candidates that differ from this one in one choice. Those that the request has made do not vary.
  static constexpr size_t kDimensions = 10;
  std::vector<Candidate> along(size_t dimension, const Candidate& from) const;

  // The same with windows for the state that can be read while backward runs, as far as `spare_bytes` of host memory
  // go. Empty where no step waits for a verdict, or the request has chosen how many there are.
  std::optional<Candidate> with_ahead_windows(const Candidate& from, const Plan& plan, uint64_t spare_bytes) const;

 private:
  bool fits(const Candidate& candidate) const;
  // Where not all uses can keep what they have made, the most that may.
  bool may_keep_some(const Candidate& candidate) const;
  // With the largest share that fits, of 0 to `most` of `count`.
  Candidate with_largest(Candidate candidate, std::optional<double> PlanChoices::*share, uint32_t most,
                         uint32_t count) const;
  Candidate with_most_kept(Candidate candidate) const;
  // Whether some unit may rest on the device, and the request leaves open how many do.
  bool device_share_is_open() const;
  Candidate with_most_on_device(Candidate candidate) const;
  std::vector<Candidate> activations_along(const Candidate& from) const;
  std::vector<Candidate> groups_along(const Candidate& from) const;
  std::vector<Candidate> device_units_along(const Candidate& from) const;
  std::vector<Candidate> weights_along(const Candidate& from) const;
  std::vector<Candidate> budgets_along(const Candidate& from) const;
  std::vector<Candidate> windows_along(const Candidate& from) const;

  const PlanRequest& request_;
  const uint64_t tile_factor_;
  uint64_t tile_elements_ = 0;                                // where they are larger than usual
  uint64_t usual_window_bytes_ = 0, large_window_bytes_ = 0;  // with a gradient
  uint32_t tiles_of_a_use_ = 0;                               // as large as usual
  uint64_t table_bytes_spared_ = 0;
};

}  // namespace penstock
