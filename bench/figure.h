// Figure: one line of a benchmark's output: what was measured, relative to what, and the goal.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/nvme/statistics.h"

namespace penstock::bench {

struct Figure {
  std::string bench;
  std::string name;     // the case
  std::string unit;     // "GB/s"
  std::string against;  // "one large file", "the sum of the drives"
  double goal = 0;      // of ratio; 0 for none
  // Measured in turn: the i-th of ours right beside the i-th of theirs.
  std::vector<double> ours;
  std::vector<double> theirs;
};

using tools::median;

// The ratio is the median of the pairs' ratios, because a machine that drifts takes both of a pair with it.
inline std::vector<double> ratios(const Figure& figure) {
  std::vector<double> out;
  for (size_t i = 0; i < figure.ours.size(); ++i) out.push_back(figure.ours[i] / figure.theirs[i]);
  return out;
}

inline void print(const Figure& figure, bool json) {
  const std::vector<double> pairs = ratios(figure);
  const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
  if (json) {
    std::printf(
        "{\"bench\": \"%s\", \"case\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"against\": \"%s\", "
        "\"against_value\": %.4g, "
        "\"ratio\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f, \"goal\": %.4g}\n",
        figure.bench.c_str(), figure.name.c_str(), median(figure.ours), figure.unit.c_str(), figure.against.c_str(),
        median(figure.theirs), median(pairs), *least, *most, figure.goal);
  } else {
    std::printf("%-10s %-28s %8.3f %s, %s %8.3f: %.3f [%.3f-%.3f], goal %.2f\n", figure.bench.c_str(),
                figure.name.c_str(), median(figure.ours), figure.unit.c_str(), figure.against.c_str(),
                median(figure.theirs), median(pairs), *least, *most, figure.goal);
  }
  std::fflush(stdout);
}

}  // namespace penstock::bench
