// The power fails at every moment of a run of the real engine, and processes are killed and start again: what was
// promised is there, bit for bit, and goes on. The engine's threads make every run's history another one; the cuts of
// one history are the same for every seed.
//
// CRASH_SEEDS sets how many random histories are run (default: what fits a test run). Looking at one place takes three
// lives of an engine, with threads and arenas: some 60 ms of a processor. So every seventh is looked at, another
// one with every seed; CRASH_STRIDE=1 looks at all.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/support/engine_crash_world.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

using aio::Crash;
using aio::RecordedDrives;
using aio::Unsafe;

constexpr uint64_t kNeverKilled = RecordedDrives::kNeverKilled;

uint64_t number_from(const char* variable, uint64_t usual) {
  const char* asked = std::getenv(variable);
  return asked ? std::strtoull(asked, nullptr, 10) : usual;
}
uint64_t seeds(uint64_t usual) { return number_from("CRASH_SEEDS", usual); }
// Instrumented builds are ten times as slow.
#ifdef PENSTOCK_DCHECKS
constexpr uint64_t kStride = 71;
#else
constexpr uint64_t kStride = 7;
#endif
uint64_t stride() { return number_from("CRASH_STRIDE", kStride); }

class EngineCrash : public testing::TestWithParam<EngineCrashSetting> {
 protected:
  EngineCrash() : world_(GetParam()) {}
  EngineCrashWorld world_;
};

TEST_P(EngineCrash, EveryEventIsACutThatACommittedStepSurvives) {
  size_t events = 0, images = 0;
  for (uint64_t seed = 1; seed <= seeds(1); ++seed) {
    RecordedDrives drives = world_.new_drives();
    ASSERT_EQ(world_.live(drives, 6, seed, kNeverKilled), "") << "caught: seed " << seed << ", without a crash";
    ASSERT_EQ(drives.acknowledged(drives.events()), 6u) << "caught: seed " << seed << ", settled too early";
    events += drives.events();
    for (size_t cut = seed % stride(); cut <= drives.events(); cut += stride()) {
      for (Unsafe unsafe : {Unsafe::chance, Unsafe::lost, Unsafe::kept}) {
        Crash crash{cut, unsafe, seed * 100000 + cut};
        ASSERT_EQ(world_.check(drives.after(crash), drives.acknowledged(cut)), "")
            << "caught: seed " << seed << ", cut " << cut << " of " << drives.events() << ", unsafe "
            << static_cast<int>(unsafe);
        ++images;
      }
    }
  }
  std::printf("%zu events, %zu images of a crash\n", events, images);
}

// Killed processes leave what the drives have not yet flushed to the next one; then the power fails; then all of it
// once more on what was left.
TEST_P(EngineCrash, SurvivesCrashesOnTopOfCrashes) {
  for (uint64_t seed = 1; seed <= seeds(3); ++seed) {
    SCOPED_TRACE(testing::Message() << "caught: seed " << seed);
    std::mt19937_64 random(seed);
    auto drives = std::make_unique<RecordedDrives>(world_.new_drives());
    for (int power_cut = 0; power_cut < 5; ++power_cut) {
      const size_t begin = drives->events();
      for (uint64_t lives = 1 + random() % 3; lives > 0; --lives) {
        const bool killed = lives > 1 || random() % 2;
        ASSERT_EQ(world_.live(*drives, 1 + random() % 3, random(), killed ? random() % 250 : kNeverKilled), "");
      }
      Crash crash{begin + random() % (drives->events() - begin + 1), static_cast<Unsafe>(random() % 3), random()};
      drives = std::make_unique<RecordedDrives>(drives->after(crash));
      RecordedDrives look = drives->after({0, Unsafe::kept, 1});
      ASSERT_EQ(world_.check(look, drives->acknowledged(0)), "") << "power cut " << power_cut;
    }
  }
}

// The next step's RNG is drawn long before this step's root is written.
TEST(EngineCrashRoot, HasTheStateThatTheTrainerGaveWithItsStep) {
  Watchdog watchdog(std::chrono::seconds(300), "a step under the tail of the one before");
  EngineCrashWorld world({.name = "AllAtOnce", .window_tiles = 36, .retained_share = 1});
  RecordedDrives drives = world.new_drives();
  ASSERT_EQ(world.live_two_steps_at_once(drives), "") << "caught: seed 1";
  size_t looked_at = 0;
  for (size_t cut = 0; cut <= drives.events(); ++cut) {
    if (drives.acknowledged(cut) != 1 || looked_at++ % 10 != 0) continue;
    ASSERT_EQ(world.check(drives.after({cut, Unsafe::lost, cut}), 1), "") << "caught: seed 1, cut " << cut;
  }
  EXPECT_GT(looked_at, 10u) << "caught: seed 1, no root of step 1";
}

// With one slot a tile a crash inside a step loses the store, and says so; a store between steps goes on.
class EngineSingle : public EngineCrash {};

TEST_P(EngineSingle, ACrashInsideAStepIsNamedAndACleanExitGoesOn) {
  Watchdog watchdog(std::chrono::seconds(300), "a store of one slot");
  RecordedDrives drives = world_.new_drives();
  ASSERT_EQ(world_.live(drives, 3, 1, kNeverKilled), "");
  size_t went_on = 0, torn = 0;
  for (size_t cut = 0; cut <= drives.events(); cut += stride()) {
    for (Unsafe unsafe : {Unsafe::chance, Unsafe::lost, Unsafe::kept}) {
      std::string wrong = world_.check(drives.after({cut, unsafe, cut}), drives.acknowledged(cut));
      const bool named = wrong.find("overwriting the only copy of its state (--space single)") != std::string::npos;
      ASSERT_TRUE(wrong.empty() || named) << "cut " << cut << " of " << drives.events() << ": " << wrong;
      (named ? torn : went_on) += 1;
    }
  }
  EXPECT_GT(torn, 0u);
  EXPECT_GT(went_on, 0u);
  ASSERT_EQ(world_.live(drives, 3, 2, kNeverKilled), "");
  RecordedDrives look = drives.after({drives.events(), Unsafe::lost, 1});
  EXPECT_EQ(world_.check(look, 6), "");
}

INSTANTIATE_TEST_SUITE_P(Settings, EngineSingle,
                         testing::Values(EngineCrashSetting{.name = "EveryStep", .slots = 1},
                                         EngineCrashSetting{.name = "EverySecondStep",
                                                            .slots = 1,
                                                            .durability = {Durability::Kind::every, 2}},
                                         EngineCrashSetting{.name = "HalfInHost", .slots = 1, .host_state_share = 0.5}),
                         [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Settings, EngineCrash,
    testing::Values(EngineCrashSetting{.name = "EveryStep"},
                    EngineCrashSetting{.name = "EveryStepThreeSlots", .slots = 3, .retained_share = 1},
                    EngineCrashSetting{.name = "EverySecondStep", .durability = {Durability::Kind::every, 2}},
                    EngineCrashSetting{.name = "HalfInHost", .host_state_share = 0.5, .weights = WeightTier::host},
                    EngineCrashSetting{.name = "HalfInHostEverySecondStep",
                                       .host_state_share = 0.5,
                                       .durability = {Durability::Kind::every, 2}},
                    EngineCrashSetting{.name = "GradientsAbsent",
                                       .slots = 3,
                                       .host_state_share = 0.5,
                                       .durability = {Durability::Kind::every, 2},
                                       .some_absent = true},
                    EngineCrashSetting{.name = "WholeSteps", .trains = true},
                    EngineCrashSetting{.name = "AtExit", .drives = 2, .durability = {Durability::Kind::exit, 1}}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::engine
