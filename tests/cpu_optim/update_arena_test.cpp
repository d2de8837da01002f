#include "cpu_optim/update_arena.h"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "tests/cpu_optim/tile_world.h"
#include "tests/support/instrumented.h"
#include "tests/support/watchdog.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kElements = 5 * kBlockElements + 999;

struct World {
  StateForm form;
  TileUpdater updater{form};
  StepNumbers numbers = numbers_of(form.optimizer, usual_hyper(form.optimizer), 1);
  std::vector<NumbersRun> runs = {{numbers}};
  Tile tile{form, kElements};
  std::vector<std::byte> gradient;
  std::vector<double> sums = std::vector<double>(6);
  std::vector<uint64_t> checksums = std::vector<uint64_t>(updater.checksum_count(kElements));

  explicit World(uint64_t seed = 1, MomentForm moments = MomentForm::bf16) : form{.moments = moments} {
    Random random(seed);
    tile.fill_masters(random, Numbers::ordinary);
    gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
  }
  TileJob job() {
    TileJob job{&updater, tile.view(gradient.data(), 0, kElements), runs, {}};
    job.notes.square_sums = sums;
    job.notes.checksum_seed = 9;
    job.notes.target_checksums = checksums;
    return job;
  }
};

TEST(UpdateArena, LeavesTheBytesOfOneThreadWhateverTheNumberOfThreads) {
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    World alone(1, moments);
    TileJob job = alone.job();
    alone.updater.update(job.tile, job.numbers, job.notes);
    for (uint32_t threads : {1u, 2u, 3u, 7u}) {
      UpdateArena arena({.threads = threads});
      World shared(1, moments);
      EXPECT_TRUE(arena.run(shared.job()).ok());
      EXPECT_EQ(shared.tile.difference(alone.tile), "") << threads << " threads";
      EXPECT_EQ(shared.sums, alone.sums);
      EXPECT_EQ(shared.checksums, alone.checksums);
    }
  }
}

TEST(UpdateArena, CallsDoneOnceForEveryJobWithoutBlockingTheCaller) {
  constexpr int kJobs = test::kStride == 1 ? 40 : 12;
  std::vector<std::unique_ptr<World>> worlds;
  for (int i = 0; i < kJobs; ++i) worlds.push_back(std::make_unique<World>(i));
  const int event = eventfd(0, EFD_SEMAPHORE);
  ASSERT_GE(event, 0);
  std::atomic<int> not_ok{0};
  {
    UpdateArena arena({.threads = 3});
    for (auto& world : worlds) {
      arena.enqueue(world->job(), [&](const TileReport& report) {
        if (!report.ok()) ++not_ok;
        const uint64_t one = 1;
        if (write(event, &one, sizeof one) != sizeof one) ++not_ok;
      });
    }
    for (int i = 0; i < kJobs; ++i) {
      uint64_t one = 0;
      ASSERT_EQ(read(event, &one, sizeof one), static_cast<ssize_t>(sizeof one));
    }
  }
  close(event);
  EXPECT_EQ(not_ok, 0);
  for (int i = 0; i < kJobs; ++i) {
    World alone(i);
    alone.updater.update(alone.job().tile, alone.numbers);
    ASSERT_EQ(worlds[i]->tile.difference(alone.tile), "") << "job " << i;
  }
}

TEST(UpdateArena, WaitsForItsJobsBeforeItEnds) {
  World world;
  std::atomic<bool> done{false};
  {
    UpdateArena arena({.threads = 2});
    arena.enqueue(world.job(), [&](const TileReport&) { done = true; });
  }
  EXPECT_TRUE(done);
}

TEST(UpdateArena, ReportsTheFirstMismatchOfAllPieces) {
  World world(3);
  world.updater.update(world.job().tile, world.numbers, world.job().notes);
  std::vector<uint64_t> expected = world.checksums;
  World again(3);
  again.tile = world.tile;
  expected[6] ^= 1;
  expected[17] ^= 1;
  TileJob job = again.job();
  job.notes.expected_checksums = expected;
  UpdateArena arena({.threads = 3});
  EXPECT_EQ(arena.run(job).checksum_mismatch, 6u);
}

TEST(UpdateArena, IsDoneWithATileOfNothingAtOnce) {
  Watchdog watchdog(std::chrono::seconds(20), "an empty tile");
  UpdateArena arena({.threads = 2, .inline_elements = 0});
  const TileUpdater updater{StateForm()};
  EXPECT_TRUE(arena.run({.updater = &updater, .tile = {}, .numbers = {}, .notes = {}}).gradient_finite);
}

TEST(UpdateArena, UpdatesSmallTilesOnTheCallersThread) {
  UpdateArena arena({.threads = 2, .inline_elements = 1000});
  std::set<std::thread::id> threads;
  arena.for_pieces(100, 1000, [&](uint64_t, uint64_t) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

TEST(UpdateArena, NeverHasMoreThreadsAtWorkThanItWasGiven) {
  for (uint32_t threads : {1u, 2u, 4u}) {
    UpdateArena arena({.threads = threads});
    EXPECT_EQ(arena.threads(), threads);
    std::atomic<int> working{0}, most{0};
    std::atomic<uint64_t> covered{0};
    arena.for_pieces(1 << 16, 64, [&](uint64_t begin, uint64_t end) {
      const int now = ++working;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      covered += end - begin;
      --working;
    });
    EXPECT_EQ(covered, 1u << 16);
    EXPECT_LE(most, static_cast<int>(threads));
    EXPECT_GE(most, 1);
  }
}

TEST(UpdateArena, PinsItsWorkersAndNobodyElse) {
  cpu_set_t before;
  CPU_ZERO(&before);
  sched_getaffinity(0, sizeof before, &before);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one processor: nothing to tell apart";
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  UpdateArena arena({.threads = 2, .cpus = {cpu}});
  std::atomic<int> elsewhere{0};
  arena.for_pieces(1 << 12, 64, [&](uint64_t, uint64_t) {
    if (sched_getcpu() != cpu) ++elsewhere;
  });
  EXPECT_EQ(elsewhere, 0);
  cpu_set_t after;
  CPU_ZERO(&after);
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace penstock::cpu_optim
