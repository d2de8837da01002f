// Which threads and processors the update's workers get, and what they are refused.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <semaphore>
#include <thread>
#include <vector>

#include "cpu_optim/processor_set.h"
#include "cpu_optim/update_workers.h"
#include "tests/support/instrumented.h"

namespace penstock::cpu_optim {
namespace {

TEST(UpdateWorkers, RefusesThreadsAndProcessorsThatDoNotExist) {
  EXPECT_TRUE(validate(UpdateWorkersOptions{}).ok());
  for (uint32_t threads : {~0u, 1u << 31, UpdateWorkersOptions::kThreadsMax + 1}) {
    EXPECT_FALSE(validate(UpdateWorkersOptions{.threads = threads}).ok()) << threads;
  }
  for (int cpu : {-1, CPU_SETSIZE, ProcessorSet::kProcessorsMax, std::numeric_limits<int>::max()}) {
    EXPECT_FALSE(validate(UpdateWorkersOptions{.cpus = {0, cpu}}).ok()) << cpu;
  }
  EXPECT_FALSE(validate(UpdateWorkersOptions{.cpus = {0}, .numa_node = 0}).ok());
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // arenas of other tests have left oneTBB's threads behind
  EXPECT_DEATH(UpdateWorkers({.threads = ~0u}), "4294967295 threads");
}

// In a process of its own: tries to create 64 workers, prints the refusal, and checks that one worker
// can be created afterwards, for which the threads of the first attempt must be gone.
[[noreturn]] void be_refused_and_exit() {
  const auto refused = UpdateWorkers::make({.threads = 64});
  if (refused.ok()) _exit(0);
  std::fprintf(stderr, "%s\ntry: %s\n", refused.status().message().c_str(), refused.status().remedy().c_str());
  auto single = UpdateWorkers::make({.threads = 1});
  // The system counts a thread for a moment after it was joined.
  for (int i = 0; i < 1000 && !single.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    single = UpdateWorkers::make({.threads = 1});
  }
  if (single.ok()) (*single)->for_pieces(2, 1, [](uint64_t, uint64_t) {});
  _exit(single.ok() ? static_cast<int>(refused.status().code()) : 1);
}

constexpr const char* kRefusedThreads =
    "start update threads: [1-9][0-9]? of 64: EAGAIN .*\ntry: ask for fewer threads, or raise `ulimit -u`";

TEST(UpdateWorkers, IsRefusedMoreThreadsThanAUserMayHave) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become a user who has no other threads";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto as_a_user_with_few_threads = [] {
    const rlimit few{4, 4};
    if (setrlimit(RLIMIT_NPROC, &few) != 0 || setresuid(54329, 54329, 54329) != 0) _exit(1);
    be_refused_and_exit();
  };
  EXPECT_EXIT(as_a_user_with_few_threads(), testing::ExitedWithCode(static_cast<int>(Code::kEnvironment)),
              kRefusedThreads);
}

TEST(UpdateWorkers, IsRefusedThreadsWhoseStacksHaveNoPlace) {
  if (test::kStride != 1) GTEST_SKIP() << "sanitizers take address space without limit";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_little_address_space = [] {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 32 * kMiB;  // stacks take 8 MiB each
    const rlimit little{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &little) != 0) _exit(1);
    be_refused_and_exit();
  };
  EXPECT_EXIT(in_little_address_space(), testing::ExitedWithCode(static_cast<int>(Code::kEnvironment)),
              kRefusedThreads);
}

TEST(UpdateWorkers, HasAThreadForEachProcessorOfItsNumaNode) {
  if (test::kStride != 1) GTEST_SKIP() << "sanitizers end a program that lets oneTBB load what knows of NUMA nodes";
  EXPECT_TRUE(validate(UpdateWorkersOptions{.numa_node = 0}).ok());
  EXPECT_FALSE(validate(UpdateWorkersOptions{.numa_node = 4711}).ok());
  UpdateWorkers workers({.numa_node = 0});
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  EXPECT_GE(workers.threads(), 1u);
  EXPECT_LE(workers.threads(), static_cast<uint32_t>(CPU_COUNT(&allowed)));
  std::atomic<uint64_t> covered{0};
  workers.for_pieces(100, 1, [&](uint64_t begin, uint64_t end) { covered += end - begin; });
  EXPECT_EQ(covered, 100u);
}

TEST(UpdateWorkers, ShareEachPieceOnceWithACallerThatNeverWaitsForABusyWorker) {
  UpdateWorkers workers({.threads = 1});
  for (uint64_t count : {0, 1, 63, 64, 65, 1000}) {
    std::vector<std::atomic<int>> times(count);
    workers.share_pieces(count, 8, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) ++times[i];
    });
    for (const std::atomic<int>& of : times) EXPECT_EQ(of, 1) << "of " << count;
  }
  std::binary_semaphore begun(0), may_end(0), ended(0);
  auto keep_busy = [&](uint64_t, uint64_t) {
    begun.release();
    may_end.acquire();
  };
  workers.enqueue_pieces(1, 1, keep_busy, [&] { ended.release(); });
  begun.acquire();
  uint64_t covered = 0;  // by this thread alone
  workers.share_pieces(100, 1, [&](uint64_t begin, uint64_t end) { covered += end - begin; });
  EXPECT_EQ(covered, 100u);
  may_end.release();
  ended.acquire();
}

TEST(ProcessorSet, HoldsProcessorsBeyondWhatTheLibrarysSetDoes) {
  for (int cpu : {0, CPU_SETSIZE - 1, CPU_SETSIZE, ProcessorSet::kProcessorsMax - 1}) {
    const ProcessorSet one = ProcessorSet::of_one(cpu);
    EXPECT_EQ(one.count(), 1) << cpu;
    EXPECT_TRUE(one.has(cpu)) << cpu;
    EXPECT_FALSE(one.has(cpu ^ 1)) << cpu;
  }
  for (int cpu : {-1, ProcessorSet::kProcessorsMax}) EXPECT_EQ(ProcessorSet::of_one(cpu).count(), 0) << cpu;
  EXPECT_GE(ProcessorSet::allowed().count(), 1);
}

TEST(UpdateWorkers, PinsItsWorkersAndNobodyElse) {
  cpu_set_t before;
  CPU_ZERO(&before);
  sched_getaffinity(0, sizeof before, &before);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one processor: nothing to tell apart";
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  UpdateWorkers workers({.threads = 2, .cpus = {cpu}});
  std::atomic<int> elsewhere{0};
  workers.for_pieces(1 << 12, 64, [&](uint64_t, uint64_t) {
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
