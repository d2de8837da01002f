// RankedCrashWorld: two ranks of a course on recorded drives, each with a log of its own, so that the power can fail at
// another moment for each of them.
//
// Which moments go together, the barriers of commits say: what a rank has done behind one, it has done after the other
// came there.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "tests/support/passing_ranks.h"
#include "tests/support/ranked_course.h"
#include "tests/support/recorded_drives.h"

namespace penstock::engine {

class RankedCrashWorld {
 public:
  static constexpr uint32_t kRanks = 2;

  // A store of each rank is made, and then a life of so many steps is recorded.
  RankedCrashWorld(uint64_t seed, uint32_t group_ranks, uint64_t steps);
  // Empty, or what went wrong so far.
  const std::string& wrong() const { return wrong_; }

  size_t events(uint32_t rank) const { return ranks_[rank].drives->events(); }
  struct Moments {
    size_t first = 0, last = 0;  // by number of events, both included
  };
  // Of the other rank, when this one has come so far.
  Moments moments_of_other(uint32_t rank, size_t events) const;

  // The power fails for both, and the run is started again: empty, if both are at one step, no older than what either
  // has acknowledged, bit-equal to the plain loop, and so after another step; or what is wrong.
  std::string check(const std::array<aio::Crash, kRanks>& crashes) const;

 private:
  struct Rank {
    std::unique_ptr<aio::RecordedDrives> drives;
    std::vector<size_t> came, went_on;  // at each barrier: events before it came there; before what it did behind it
  };
  using OfRank = std::function<Status(RankedCourse& course, Ranks& ranks)>;
  // Both at once, each on a thread of its own.
  std::string run(const OfRank& life) const;

  const uint64_t seed_;
  const uint32_t group_ranks_;
  std::array<Rank, kRanks> ranks_;
  std::string wrong_;
};

}  // namespace penstock::engine
