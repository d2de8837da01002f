// Budget hands out one tier's bytes at start, line by line, and can be printed. A refusal says how much was needed, how
// much there was, and what already has the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/status.h"
#include "tiering/tier.h"

namespace penstock {

class Budget {
 public:
  struct Line {
    std::string name;
    uint64_t bytes = 0;
  };

  Budget(Tier tier, uint64_t capacity_bytes) : tier_(tier), capacity_bytes_(capacity_bytes) {}

  // Takes `bytes` under `name`; the same name adds to its line. A refusal's advice counts what is to be taken `later`,
  // too.
  Status take(const std::string& name, uint64_t bytes, uint64_t later_bytes = 0);

  Tier tier() const { return tier_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t free_bytes() const { return capacity_bytes_ - taken_bytes_; }
  const std::vector<Line>& lines() const { return lines_; }

  // One line each, then the sum: what a user reads at start.
  std::string table() const;

 private:
  const Tier tier_;
  const uint64_t capacity_bytes_;
  uint64_t taken_bytes_ = 0;
  std::vector<Line> lines_;
};

}  // namespace penstock
