#include "cpu_optim/update_workers.h"

#include <gtest/gtest.h>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <semaphore>
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

TEST(UpdateWorkers, LeavesTheBytesOfOneThreadWhateverTheNumberOfThreads) {
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    World alone(1, moments);
    TileJob job = alone.job();
    alone.updater.update(job.tile, job.numbers, job.notes);
    for (uint32_t threads : {1u, 2u, 3u, 7u}) {
      UpdateWorkers workers({.threads = threads});
      World shared(1, moments);
      EXPECT_TRUE(workers.run(shared.job()).ok());
      EXPECT_EQ(shared.tile.difference(alone.tile), "") << threads << " threads";
      EXPECT_EQ(shared.sums, alone.sums);
      EXPECT_EQ(shared.checksums, alone.checksums);
    }
  }
}

// Nothing beside the tile's own bytes is written: what follows the copy is another tile's.
TEST(UpdateWorkers, LeavesACopyOfTheNewWeightWhereItIsAsked) {
  for (const uint64_t inline_elements : {uint64_t{0}, kElements + 1}) {
    World world;
    UpdateWorkers workers({.threads = 3, .inline_elements = inline_elements});
    TileJob job = world.job();
    const uint64_t bytes = kElements * bytes_of(world.form.weight);
    std::vector<std::byte> copy(bytes + 64, std::byte{0x5a});
    job.weight_copy = copy.data();
    EXPECT_TRUE(workers.run(job).ok());
    EXPECT_EQ(std::memcmp(copy.data(), job.tile.weight.target, bytes), 0);
    EXPECT_EQ(std::count(copy.end() - 64, copy.end(), std::byte{0x5a}), 64);
  }
}

TEST(UpdateWorkers, CallsDoneOnceForEveryJobWithoutBlockingTheCaller) {
  constexpr int kJobs = test::kStride == 1 ? 40 : 12;
  std::vector<std::unique_ptr<World>> worlds;
  for (int i = 0; i < kJobs; ++i) worlds.push_back(std::make_unique<World>(i));
  const int event = eventfd(0, EFD_SEMAPHORE);
  ASSERT_GE(event, 0);
  std::atomic<int> not_ok{0};
  {
    UpdateWorkers workers({.threads = 3});
    for (auto& world : worlds) {
      workers.enqueue(world->job(), [&](const TileReport& report) {
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

TEST(UpdateWorkers, WaitsForItsJobsBeforeItEnds) {
  World world;
  std::atomic<bool> done{false};
  {
    UpdateWorkers workers({.threads = 2});
    workers.enqueue(world.job(), [&](const TileReport&) { done = true; });
  }
  EXPECT_TRUE(done);
}

TEST(UpdateWorkers, ReportsTheFirstMismatchOfAllPieces) {
  World world(3);
  world.updater.update(world.job().tile, world.numbers, world.job().notes);
  std::vector<uint64_t> expected = world.checksums;
  World again(3);
  again.tile = world.tile;
  expected[6] ^= 1;
  expected[17] ^= 1;
  TileJob job = again.job();
  job.notes.expected_checksums = expected;
  UpdateWorkers workers({.threads = 3});
  EXPECT_EQ(workers.run(job).checksum_mismatch, 6u);
}

TEST(UpdateWorkers, IsDoneWithATileOfNothingAtOnce) {
  Watchdog watchdog(std::chrono::seconds(20), "an empty tile");
  UpdateWorkers workers({.threads = 2, .inline_elements = 0});
  const TileUpdater updater{StateForm()};
  EXPECT_TRUE(workers.run({.updater = &updater, .tile = {}, .numbers = {}, .notes = {}}).gradient_finite);
}

TEST(UpdateWorkers, UpdatesSmallTilesOnTheCallersThread) {
  UpdateWorkers workers({.threads = 2, .inline_elements = 1000});
  std::set<std::thread::id> threads;
  workers.for_pieces(100, 1000, [&](uint64_t, uint64_t) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

TEST(UpdateWorkers, NeverHasMoreThreadsAtWorkThanItWasGiven) {
  for (uint32_t threads : {1u, 2u, 4u}) {
    UpdateWorkers workers({.threads = threads});
    EXPECT_EQ(workers.threads(), threads);
    std::atomic<int> working{0}, most{0};
    std::atomic<uint64_t> covered{0};
    workers.for_pieces(1 << 16, 64, [&](uint64_t begin, uint64_t end) {
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

// oneTBB's library is not instrumented, so what a test hands to it seems to race.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesOneTbb = false;
#else
constexpr bool kSeesOneTbb = true;
#endif

// Bodies that go on only when so many of them run at once.
std::function<void(uint64_t, uint64_t)> meeting(std::latch& all) {
  return [&all](uint64_t, uint64_t) { all.arrive_and_wait(); };
}

TEST(UpdateWorkers, TakesNoThreadFromOtherArenasOrFromTheTrainersOneTbb) {
  Watchdog watchdog(std::chrono::seconds(60), "two arenas of three threads beside a trainer's arena of four");
  constexpr int kThreads = 3, kOfTrainer = kSeesOneTbb ? 4 : 1;
  UpdateWorkers first({.threads = kThreads}), second({.threads = kThreads});
  std::latch all(2 * kThreads + kOfTrainer);
  std::thread in_first([&] { first.for_pieces(kThreads, 1, meeting(all)); });
  std::thread in_second([&] { second.for_pieces(kThreads, 1, meeting(all)); });
  if (kSeesOneTbb) {
    tbb::task_arena(kOfTrainer).execute([&] {
      const auto meet = [&](int) { all.arrive_and_wait(); };
      tbb::parallel_for(0, kOfTrainer, meet, tbb::simple_partitioner());
    });
  } else {
    all.arrive_and_wait();
  }
  in_first.join();
  in_second.join();
}

TEST(UpdateWorkers, GoesOnWhereTheTrainerHasLimitedOneTbbToOneThread) {
  Watchdog watchdog(std::chrono::seconds(60), "two arenas under a limit of one thread");
  tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 1);
  std::vector<std::unique_ptr<World>> worlds;
  for (int i = 0; i < 8; ++i) worlds.push_back(std::make_unique<World>(i));
  std::atomic<int> done{0};
  std::atomic<uint64_t> covered{0};
  {
    UpdateWorkers first({.threads = 3}), second({.threads = 1});
    for (size_t i = 0; i < worlds.size(); ++i) {
      (i % 2 == 0 ? first : second).enqueue(worlds[i]->job(), [&](const TileReport&) { ++done; });
    }
    for (UpdateWorkers* workers : {&first, &second}) {
      workers->for_pieces(100, 1, [&](uint64_t begin, uint64_t end) { covered += end - begin; });
    }
  }
  EXPECT_EQ(done, 8);
  EXPECT_EQ(covered, 200u);
}

TEST(UpdateWorkers, SharesWhatABodyStartsWithOneTbbAmongItsWorkersOnly) {
  if (!kSeesOneTbb) GTEST_SKIP() << "oneTBB is not instrumented";
  constexpr int kThreads = 2;
  UpdateWorkers workers({.threads = kThreads});
  std::atomic<int> working{0}, most{0}, ran{0}, on_callers_thread{0};
  const auto caller = std::this_thread::get_id();
  workers.for_pieces(4, 1, [&](uint64_t, uint64_t) {
    tbb::parallel_for(0, 50, [&](int) {
      const int now = ++working;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      on_callers_thread += std::this_thread::get_id() == caller;
      --working;
      ++ran;
    });
  });
  EXPECT_EQ(ran, 4 * 50);
  EXPECT_LE(most, kThreads);
  EXPECT_EQ(on_callers_thread, 0);
}

TEST(UpdateWorkers, ReleasesWhatDoneHoldsBeforeItEnds) {
  auto held = std::make_shared<World>();
  const std::weak_ptr<World> watch = held;
  {
    UpdateWorkers workers({.threads = 2});
    const TileJob job = held->job();
    workers.enqueue(job, [held = std::move(held)](const TileReport&) {});
  }
  EXPECT_TRUE(watch.expired());
}

TEST(UpdateWorkers, StartsAndEndsWhileOthersWork) {
  Watchdog watchdog(std::chrono::seconds(100), "arenas made and destroyed beside a busy one");
  UpdateWorkers busy({.threads = 2});
  std::atomic<bool> over{false};
  std::atomic<uint64_t> pieces{0};
  std::thread load([&] {
    while (!over) busy.for_pieces(64, 1, [&](uint64_t, uint64_t) { ++pieces; });
  });
  World world;
  for (uint32_t i = 0; i < test::fewer(200); ++i) {
    std::atomic<bool> done{false};
    {
      UpdateWorkers brief({.threads = 1 + i % 3});
      brief.enqueue(world.job(), [&](const TileReport&) { done = true; });
    }
    EXPECT_TRUE(done) << i;
  }
  over = true;
  load.join();
  EXPECT_GT(pieces, 0u);
}

TEST(UpdateWorkers, LetsItsWorkersWaitForTheArenaItself) {
  Watchdog watchdog(std::chrono::seconds(60), "a body that shares out work among its own workers");
  for (uint32_t threads : {2u, 1u, 3u}) {
    if (threads != 2 && test::kStride != 1) continue;
    UpdateWorkers workers({.threads = threads, .inline_elements = 0});
    std::vector<std::unique_ptr<World>> worlds;
    for (int i = 0; i < 4; ++i) worlds.push_back(std::make_unique<World>(i));
    std::atomic<uint64_t> covered{0};
    workers.for_pieces(worlds.size(), 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) workers.run(worlds[i]->job());
      workers.for_pieces(1000, 10, [&](uint64_t first, uint64_t last) { covered += last - first; });
    });
    EXPECT_EQ(covered, 4000u);
    for (int i = 0; i < 4; ++i) {
      World alone(i);
      alone.updater.update(alone.job().tile, alone.numbers);
      EXPECT_EQ(worlds[i]->tile.difference(alone.tile), "") << threads << " threads, tile " << i;
    }
  }
}

// A body that waits for its own pieces may hold what another job needs.
TEST(UpdateWorkers, TakesUpNoOtherJobWhileABodyWaitsForItsPieces) {
  Watchdog watchdog(std::chrono::seconds(60), "a body that waits for a piece on another worker");
  std::latch both_begun(2);
  std::binary_semaphore other_ended(0);
  std::atomic<bool> within_a_body{false};
  std::atomic<std::thread::id> holder;
  UpdateWorkers workers({.threads = 3});
  const auto other = [&](uint64_t, uint64_t) {
    if (std::this_thread::get_id() == holder) within_a_body = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  workers.for_pieces(2, 1, [&](uint64_t begin, uint64_t) {
    if (begin > 0) return;
    holder = std::this_thread::get_id();
    workers.for_pieces(2, 1, [&](uint64_t, uint64_t) {
      both_begun.arrive_and_wait();  // each on a worker of its own
      if (std::this_thread::get_id() == holder) return;
      workers.enqueue_pieces(16, 1, other, [&] { other_ended.release(); });  // for the third
      other_ended.acquire();
    });
    holder = std::thread::id();
  });
  EXPECT_FALSE(within_a_body);
}

}  // namespace
}  // namespace penstock::cpu_optim
