#include "tiering/plan/rate_watch.h"

#include <algorithm>
#include <cmath>

namespace penstock {

std::optional<double> RateWatch::learn(double expected_gbps, const DrivesUnderLoad& step) {
  const bool is_known = expected_gbps > 0 && step.seconds > 0 && step.bytes() >= static_cast<double>(rule_.least_bytes);
  const double share = is_known ? step.bytes() / step.seconds / (expected_gbps * 1e9) : 1;
  const bool is_other_side = !shares_.empty() && (shares_.front() < 1) != (share < 1);
  if (is_other_side || std::abs(share - 1) <= rule_.off_by) shares_.clear();
  if (std::abs(share - 1) <= rule_.off_by) return std::nullopt;
  shares_.push_back(share);
  if (shares_.size() < rule_.steps) return std::nullopt;
  std::sort(shares_.begin(), shares_.end());
  const double median = shares_[shares_.size() / 2];
  shares_.clear();
  return median;
}

}  // namespace penstock
