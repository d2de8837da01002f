// Medians of small samples.
#pragma once

#include <algorithm>
#include <vector>

#include "tiering/check.h"

namespace penstock::tools {

// The middle one, or the mean of the two in the middle.
inline double median(std::vector<double> values) {
  CHECK(!values.empty(), "the median of nothing");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace penstock::tools
