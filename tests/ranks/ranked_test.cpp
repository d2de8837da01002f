// Several ranks train one model: the bits are those of a plain loop of as many ranks, whoever keeps what.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/instrumented.h"
#include "tests/support/rank_processes.h"
#include "tests/support/ranked_course.h"

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

struct Stage {
  const char* name;
  uint32_t ranks, group_ranks;
  const char* gathers;  // for each pass, or once a step
  const char* codes = "";
};

class Stages : public testing::TestWithParam<Stage> {
 protected:
  static void leave_the_bits(const char* worker, uint64_t courses, const std::vector<std::string>& environment) {
    const Stage& stage = GetParam();
    std::vector<std::string> with_codes = environment;
    with_codes.push_back(text("CODES=", stage.codes));
    int struck = 0, skipped = 0, discarded = 0, absent = 0;
    for (uint64_t seed = 1; seed <= courses; ++seed) {
      RankProcesses processes(stage.ranks, {worker, text(seed), "5", text(stage.group_ranks), stage.gathers},
                              with_codes);
      for (const RankEnd& end : processes.wait()) {
        ASSERT_EQ(end.code + end.signal, 0) << "seed " << seed << ": " << end.said;
        int of[4];
        ASSERT_EQ(
            std::sscanf(end.said.c_str(), "struck %d skipped %d discarded %d absent %d", of, of + 1, of + 2, of + 3), 4)
            << end.said;
        struck += of[0];
        skipped += of[1];
        discarded += of[2];
        absent += of[3];
      }
    }
    if (courses < 4) return;
    EXPECT_GT(struck, 0);
    EXPECT_GT(skipped, 0);
    EXPECT_GT(discarded, 0);
    EXPECT_GT(absent, 0);
  }
};

TEST_P(Stages, LeaveTheBitsOfAPlainLoopOfAsManyRanks) {
  const bool has_codes = *GetParam().codes != '\0';
  const uint64_t courses = test::kStride != 1 || GetParam().ranks > 4 ? 1 : GetParam().ranks > 2 || has_codes ? 2 : 4;
  leave_the_bits(test::worker_or_mutant(RANKED_WORKER).c_str(), courses, {});
}

INSTANTIATE_TEST_SUITE_P(Ranks, Stages,
                         testing::Values(Stage{"one", 1, 1, "each"}, Stage{"two_stage_0", 2, 1, "each"},
                                         Stage{"two_stage_2", 2, 2, "once"}, Stage{"two_stage_3", 2, 2, "each"},
                                         Stage{"three_stage_0", 3, 1, "each"}, Stage{"three_stage_3", 3, 3, "each"},
                                         Stage{"four_stage_3", 4, 4, "each"}, Stage{"four_hybrid", 4, 2, "each"},
                                         Stage{"eight_stage_3", 8, 8, "each"}, Stage{"eight_hybrid", 8, 4, "once"}),
                         [](const auto& each) { return std::string(each.param.name); });

// Two ranks in stages 2 and 3, four in 3 and hybrid: each against the plain loop, so equal among one another.
INSTANTIATE_TEST_SUITE_P(
    InCodes, Stages,
    testing::Values(Stage{"two_stage_2", 2, 2, "once", "wg"}, Stage{"two_stage_3", 2, 2, "each", "wg"},
                    Stage{"two_stage_0", 2, 1, "each", "g"}, Stage{"four_stage_3", 4, 4, "each", "wg"},
                    Stage{"four_hybrid", 4, 2, "each", "wg"}, Stage{"three_frozen", 3, 3, "each", "fg"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(RankedSteps, AreRefusedWhereUnitsAreToRestOnADevice) {
  const RankPlace alone{.rank = 0, .ranks = 1, .meeting = {}};
  RankedCourse course(1, alone, 1, false);
  course.options().engine.request.choices.device_share = 0.5;
  auto met = meet({.place = alone, .memory_bytes = course.memory_bytes()});
  ASSERT_TRUE(met.ok()) << met.status().message();
  const Status refused = course.create(**met);
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.remedy(), "leave out penstock.device_share");
}

// By events, not by time: see OverlapCourse.
TEST(RankedSteps, GatherTheNextUnitAndAddUpTheLastWhileOneIsComputed) {
  struct World {
    const char *ranks, *group_ranks, *codes;
  };
  for (const World world :
       {World{"2", "2", ""}, World{"3", "3", ""}, World{"2", "1", ""}, World{"2", "2", "wg"}, World{"3", "3", "g"}}) {
    const auto ranks = static_cast<uint32_t>(std::atoi(world.ranks));
    RankProcesses processes(ranks,
                            {test::worker_or_mutant(RANKED_WORKER), "1", "2", world.group_ranks, "each", "overlap"},
                            {text("CODES=", world.codes)});
    for (const RankEnd& end : processes.wait()) EXPECT_EQ(end.code + end.signal, 0) << end.said;
    if (HasFailure()) return;  // a rank that waits in vain does so for long
  }
}

class StagesOnDevices : public Stages {};

TEST_P(StagesOnDevices, LeaveTheBitsOfAPlainLoopOfAsManyRanks) {
  const uint64_t courses = test::kStride != 1 || GetParam().ranks != 2 ? 1 : 2;
  leave_the_bits(test::worker_or_mutant(RANKED_WORKER).c_str(), courses, {"ON_DEVICE=0"});
}

// Whatever lets the next weights in too early has them arrive while these are computed with.
TEST(RankedSteps, LeaveTheBitsWhereADeviceComputesForLong) {
  for (const char* seed : {"1", "2", "3", "4"}) {
    RankProcesses processes(2, {test::worker_or_mutant(RANKED_WORKER), seed, "2", "2", "each"}, {"ON_DEVICE=10"});
    for (const RankEnd& end : processes.wait())
      EXPECT_EQ(end.code + end.signal, 0) << "seed " << seed << ": " << end.said;
    if (HasFailure()) return;
  }
}

#ifdef RANKED_CUDA_WORKER
// Over a runtime in plain memory.
TEST_P(StagesOnDevices, LeaveTheBitsOfAPlainLoopOnCuda) { leave_the_bits(RANKED_CUDA_WORKER, 1, {"ON_DEVICE=0"}); }

// And over an NCCL there.
std::vector<std::string> gathering_on_devices(const std::vector<std::string>& more = {}) {
  std::vector<std::string> environment = more;
  environment.insert(environment.end(), {"ON_DEVICE=0", "GATHERS=device", "PENSTOCK_NCCL=" PLAIN_NCCL,
                                         "PLAIN_NCCL_SEED=1", "PLAIN_CUDA_SLOW_KERNELS=1"});
  return environment;
}

class StagesAmongDevices : public Stages {};

TEST_P(StagesAmongDevices, LeaveTheBitsOfAPlainLoopOfAsManyRanks) {
  const uint64_t courses = test::kStride != 1 ? 1 : GetParam().ranks == 2 ? 4 : 2;
  leave_the_bits(test::worker_or_mutant(RANKED_CUDA_WORKER).c_str(), courses, gathering_on_devices());
}

INSTANTIATE_TEST_SUITE_P(Ranks, StagesAmongDevices,
                         testing::Values(Stage{"one", 1, 1, "each"}, Stage{"two_stage_0", 2, 1, "each"},
                                         Stage{"two_stage_2", 2, 2, "once"}, Stage{"two_stage_3", 2, 2, "each"},
                                         Stage{"three_stage_2", 3, 3, "once"}, Stage{"three_stage_3", 3, 3, "each"},
                                         Stage{"four_hybrid", 4, 2, "each"}, Stage{"two_in_int4", 2, 2, "each", "g"}),
                         [](const auto& each) { return std::string(each.param.name); });

// As above: the other ranks' shards come into the same memory, and here at once.
TEST(RankedSteps, LeaveTheBitsWhereDevicesThatGatherComputeForLong) {
  for (const char* seed : {"1", "3"}) {
    RankProcesses processes(2, {test::worker_or_mutant(RANKED_CUDA_WORKER), seed, "2", "2", "each"},
                            gathering_on_devices({"ON_DEVICE=10", "PLAIN_NCCL_SEED=0"}));
    for (const RankEnd& end : processes.wait())
      EXPECT_EQ(end.code + end.signal, 0) << "seed " << seed << ": " << end.said;
    if (HasFailure()) return;
  }
}

// As on a GPU, whose memory a trainer on the host does not reach.
TEST(RankedSteps, LeaveTheBitsWithATrainerThatCopies) {
  for (const char* gathers : {"each", "once"}) {
    RankProcesses processes(2, {RANKED_CUDA_WORKER, "1", "3", "2", gathers}, gathering_on_devices({"BY_COPIES=1"}));
    for (const RankEnd& end : processes.wait()) EXPECT_EQ(end.code + end.signal, 0) << end.said;
  }
}

struct Copied {
  unsigned long long up = 0, down = 0, within = 0, gradients_up = 0, gradients_down = 0, engine_down = 0;
};

// Of two ranks together, whose courses leave the right bits.
Copied copied(std::vector<std::string> environment) {
  Copied all;
  RankProcesses processes(2, {RANKED_CUDA_WORKER, "1", "3", "2", "each"}, environment);
  for (const RankEnd& end : processes.wait()) {
    EXPECT_EQ(end.code + end.signal, 0) << end.said;
    Copied of;
    const size_t at = end.said.find("weights up");
    EXPECT_EQ(std::sscanf(end.said.c_str() + std::min(at, end.said.size()),
                          "weights up %llu down %llu within %llu, gradients up %llu down %llu, engine up %*u down %llu",
                          &of.up, &of.down, &of.within, &of.gradients_up, &of.gradients_down, &of.engine_down),
              6)
        << end.said;
    all.up += of.up;
    all.down += of.down;
    all.within += of.within;
    all.gradients_up += of.gradients_up;
    all.gradients_down += of.gradients_down;
    all.engine_down += of.engine_down;
  }
  return all;
}

// Where ranks share in host memory, their shards come down and the whole goes up; and of gradients, all that a trainer
// gives in fp32 comes down, where else the sum over all ranks does, in bf16, each shard on one rank.
TEST(RankedSteps, SendWhatDevicesShareNotOverTheirLinks) {
  const Copied in_host = copied({"ON_DEVICE=0", "GATHERS=host"});
  EXPECT_GT(in_host.down, 0u);
  EXPECT_EQ(in_host.up, 2 * in_host.down);  // of two ranks
  EXPECT_EQ(in_host.within, 0u);
  const Copied on_device = copied(gathering_on_devices());
  EXPECT_EQ(on_device.down, 0u);
  EXPECT_EQ(on_device.up, 0u);
  EXPECT_EQ(on_device.within, in_host.down);
  EXPECT_GT(on_device.gradients_down, 0u);
  EXPECT_LE(4 * on_device.gradients_down, in_host.gradients_down);
  EXPECT_EQ(on_device.gradients_up, 0u);
  EXPECT_LT(on_device.engine_down, on_device.gradients_down);  // nothing of them, only activations
}

// The others wait inside NCCL then, on a device's stream.
TEST(RankedSteps, EndWithTheNameOfOneThatDiesInAGatherAmongDevices) {
  RankProcesses processes(3, {RANKED_CUDA_WORKER, "1", "5", "3", "each"},
                          gathering_on_devices({"DIES_IN_GATHER=1 4", "PLAIN_NCCL_STUCK=1:5"}));
  const std::vector<RankEnd> ends = processes.wait();
  EXPECT_EQ(ends[1].signal, SIGKILL);
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_EQ(ends[rank].code, 1);
    EXPECT_EQ(ends[rank].said.find("rank 1 died in step "), 0u) << ends[rank].said;
    EXPECT_LT(ends[rank].after_s, 15);
  }
}

TEST(RankedSteps, AreRefusedWhereDevicesAreToGatherCodes) {
  RankProcesses processes(2, {RANKED_CUDA_WORKER, "1", "1", "2", "each"}, gathering_on_devices({"CODES=w"}));
  for (const RankEnd& end : processes.wait()) {
    EXPECT_EQ(end.said, "ranks: weights are to be gathered in int8 on devices, and the CPU alone decodes them\n");
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Ranks, StagesOnDevices,
                         testing::Values(Stage{"one", 1, 1, "each"}, Stage{"two_stage_0", 2, 1, "each"},
                                         Stage{"two_stage_2", 2, 2, "once"}, Stage{"two_stage_3", 2, 2, "each"},
                                         Stage{"three_stage_3", 3, 3, "each"}, Stage{"four_hybrid", 4, 2, "once"},
                                         Stage{"two_in_codes", 2, 2, "each", "wg"}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace penstock::engine
