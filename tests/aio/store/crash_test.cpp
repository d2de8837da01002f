// The power fails at every moment of a run, and processes are killed and start again: what was acknowledged is there,
// bit for bit, and goes on.
//
// CRASH_SEEDS sets how many random histories are run (default: what fits a test run).
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/support/crash_world.h"
#include "tests/support/instrumented.h"
#include "tests/support/store_shapes.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kNeverKilled = ~uint64_t{0};
constexpr uint64_t kStepsMax = 64;

uint64_t seeds(uint64_t usual) {
  const char* asked = std::getenv("CRASH_SEEDS");
  return asked ? std::strtoull(asked, nullptr, 10) : usual;
}

const StoreShape& twelve_tiles() {
  static const StoreShape shape = small_shape(12, 3000, kBlockElements);
  return shape;
}

const std::vector<PlainTraining>& plain_states() {
  static const std::vector<PlainTraining> states = [] {
    std::vector<PlainTraining> all{PlainTraining(twelve_tiles())};
    while (all.size() <= kStepsMax) {
      all.push_back(all.back());
      all.back().run(1);
    }
    return all;
  }();
  return states;
}

std::string name_of(const testing::TestParamInfo<CrashSetting>& info) {
  const CrashSetting& setting = info.param;
  return text(setting.drives, "drives_", setting.slots, "slots_every", setting.every);
}

class CrashTest : public testing::TestWithParam<CrashSetting> {
 protected:
  CrashWorld new_world() const { return CrashWorld(twelve_tiles(), plain_states(), GetParam()); }
};

TEST_P(CrashTest, EveryEventIsACutThatACommittedStepSurvives) {
  for (uint64_t seed = 1; seed <= seeds(1); ++seed) {
    CrashWorld world = new_world();
    ASSERT_EQ(world.create(seed, kNeverKilled), "");
    const size_t begin = world.events();
    ASSERT_EQ(world.live(6, seed, kNeverKilled), "");
    ASSERT_EQ(world.acknowledged(world.events()), 6u);
    for (size_t cut = begin; cut <= world.events(); cut += test::kStride) {
      for (Unsafe unsafe : {Unsafe::chance, Unsafe::lost, Unsafe::kept}) {
        Crash crash{cut, unsafe, seed * 100000 + cut};
        ASSERT_EQ(world.after(crash).check(world.acknowledged(cut)), "")
            << "caught: seed " << seed << ", cut " << cut << " of " << world.events() << ", unsafe "
            << static_cast<int>(unsafe);
      }
    }
  }
}

TEST_P(CrashTest, AHalfCreatedStoreIsNeverOpened) {
  CrashWorld world = new_world();
  ASSERT_EQ(world.create(7, kNeverKilled), "");
  for (size_t cut = 0; cut < world.events(); cut += test::kStride) {
    std::string wrong = world.after({cut, Unsafe::chance, cut}).check(0);
    ASSERT_TRUE(wrong.empty() || wrong.find("half-created") != std::string::npos)
        << "caught: seed 7, cut " << cut << ": " << wrong;
  }
}

// Killed processes leave what the drives have not yet flushed to the next one; then the power fails; then all of it
// once more on what was left.
TEST_P(CrashTest, SurvivesCrashesOnTopOfCrashes) {
  for (uint64_t seed = 1; seed <= seeds(test::fewer(15)); ++seed) {
    SCOPED_TRACE(testing::Message() << "caught: seed " << seed);
    std::mt19937_64 random(seed);
    CrashWorld first = new_world();
    ASSERT_EQ(first.create(seed, kNeverKilled), "");
    auto world = std::make_unique<CrashWorld>(std::move(first));
    for (int power_cut = 0; power_cut < 5; ++power_cut) {
      const size_t begin = world->events();
      for (uint64_t lives = 1 + random() % 3; lives > 0; --lives) {
        const bool killed = lives > 1 || random() % 2;
        ASSERT_EQ(world->live(1 + random() % 3, random(), killed ? random() % 250 : kNeverKilled), "");
      }
      Crash crash{begin + random() % (world->events() - begin + 1), static_cast<Unsafe>(random() % 3), random()};
      world = std::make_unique<CrashWorld>(world->after(crash));
      CrashWorld look = world->after({0, Unsafe::kept, 1});
      ASSERT_EQ(look.check(world->acknowledged(0)), "") << "power cut " << power_cut;
    }
  }
}

// The next process finds what the killed one had written, but it is in the drives' caches only.
TEST_P(CrashTest, WhatAKilledProcessLeftIsNotDurableUntilItIsFlushed) {
  const uint64_t steps = 2 * GetParam().every;
  for (uint64_t requests = 1; requests < 1000; requests += test::kStride) {
    CrashWorld world = new_world();
    ASSERT_EQ(world.create(1, kNeverKilled), "");
    ASSERT_EQ(world.live(steps, 1, requests), "");
    if (world.acknowledged(world.events()) == steps) return;
    const size_t killed = world.events();
    ASSERT_EQ(world.live(1, 2, 90), "");
    for (size_t eighth = 4; eighth <= 8; ++eighth) {
      Crash crash{killed + (world.events() - killed) * eighth / 8, Unsafe::chance, requests};
      ASSERT_EQ(world.after(crash).check(world.acknowledged(crash.events)), "")
          << "caught: seed 1, killed after " << requests << " requests";
    }
  }
  FAIL() << "the steps take more requests than expected";
}

INSTANTIATE_TEST_SUITE_P(Settings, CrashTest,
                         testing::Values(CrashSetting{3, 2, 1}, CrashSetting{3, 3, 1}, CrashSetting{3, 2, 3},
                                         CrashSetting{2, 3, 2, WeightPlacement::by_unit}, CrashSetting{1, 2, 1}),
                         name_of);

}  // namespace
}  // namespace penstock::aio
