// The power fails for two ranks, at a moment of its own for each: the run that is started again finds a step that both
// have, no older than what either has promised, bit for bit, and goes on.
//
// CRASH_SEEDS sets how many courses are run, CRASH_STRIDE that every so many'th event of rank 0 is a moment (default:
// what fits a test run; 1 looks at all). At each of them rank 1 is as far behind as barriers let it be, as far ahead,
// or between.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/support/instrumented.h"
#include "tests/support/ranked_crash_world.h"

namespace penstock::engine {
namespace {

using aio::Crash;
using aio::Unsafe;

uint64_t number_from(const char* variable, uint64_t usual) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : usual;
}

constexpr uint64_t kSteps = 3;

// Stage 3, and stage 0, where both have all of the model.
class RankedCrash : public testing::TestWithParam<uint32_t> {};

TEST_P(RankedCrash, LeavesAStepThatBothHaveWhereverEachWasCut) {
  size_t images = 0, apart = 0;
  for (uint64_t seed = 1; seed <= number_from("CRASH_SEEDS", 1); ++seed) {
    const RankedCrashWorld world(seed, GetParam(), kSteps);
    ASSERT_EQ(world.wrong(), "") << "seed " << seed << ", without a crash";
    std::mt19937_64 random(seed);
    // Some eight moments of rank 0, each with three of rank 1.
    const uint64_t usual = world.events(0) / (test::kStride == 1 ? 8 : 2) + 1;
    const uint64_t stride = number_from("CRASH_STRIDE", usual);
    for (size_t cut = random() % stride; cut <= world.events(0); cut += stride) {
      const auto [first, last] = world.moments_of_other(0, cut);
      ASSERT_LE(first, last) << "seed " << seed << ", cut " << cut;
      apart += last - first;
      for (const size_t other : {first, last, first + random() % (last - first + 1)}) {
        const auto unsafe = [&] { return static_cast<Unsafe>(random() % 3); };
        const std::array<Crash, 2> crashes = {Crash{cut, unsafe(), random()}, Crash{other, unsafe(), random()}};
        ASSERT_EQ(world.check(crashes), "")
            << "seed " << seed << ", rank 0 cut at " << cut << " of " << world.events(0) << ", unsafe "
            << static_cast<int>(crashes[0].unsafe) << ", rank 1 at " << other << " of " << world.events(1)
            << ", unsafe " << static_cast<int>(crashes[1].unsafe);
        ++images;
      }
    }
  }
  EXPECT_GT(apart, 0u) << "the barriers let no moments differ";
  std::printf("%zu images of a crash of both\n", images);
}

INSTANTIATE_TEST_SUITE_P(GroupRanks, RankedCrash, testing::Values(2u, 1u),
                         [](const auto& each) { return each.param == 1 ? "stage_0" : "stage_3"; });

}  // namespace
}  // namespace penstock::engine
