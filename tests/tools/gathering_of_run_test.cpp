// Where ranks of a run gather weights: on their GPUs where each has its own and NCCL is found, and else why not.
#include "tools/train/gathering_of_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace penstock::tools {
namespace {

constexpr DeviceOfRank kFirst{.is_cuda = true, .identity = 17, .finds_nccl = true};
constexpr DeviceOfRank kSecond{.is_cuda = true, .identity = 18, .finds_nccl = true};

engine::RankPlace place_of(uint32_t rank, uint32_t hosts = 1) {
  return {.rank = rank, .ranks = 2, .meeting = text("gathering of ", ::getpid()), .hosts = hosts};
}

std::string why(const DeviceOfRank& second, uint32_t hosts = 1, const RankCodes& codes = {}) {
  const DeviceOfRank ranks[] = {kFirst, second};
  return why_in_host_memory(ranks, place_of(0, hosts), codes);
}

TEST(GatheringOfRun, IsOnDevicesWhereEachRankHasAGpuOfItsOwnAndNccl) { EXPECT_EQ(why(kSecond), ""); }

TEST(GatheringOfRun, IsInHostMemoryElseAndSaysWhy) {
  EXPECT_EQ(why(kFirst), "ranks 0 and 1 compute on the same GPU");
  EXPECT_EQ(why({.is_cuda = true, .identity = 18}), "rank 1 finds no NCCL");
  EXPECT_EQ(why({.is_cuda = true, .finds_nccl = true}), "rank 1 cannot tell its GPU from others");
  EXPECT_EQ(why({}), "rank 1 computes on no GPU");
  EXPECT_EQ(why(kSecond, 2), "ranks of several hosts share no bytes among devices");
  EXPECT_EQ(why(kSecond, 1, {.weights = true}), "the CPU decodes weights that come in int8");
  EXPECT_EQ(why(kSecond, 1, {.frozen_weights = true}), "the CPU decodes weights that come in int8");
  EXPECT_EQ(why(kSecond, 1, {.gradients = true}), "");
}

// By all ranks together, each on a thread of its own; on this machine, whatever GPUs it has, they share one.
TEST(GatheringOfRun, IsAlikeOnAllRanks) {
  const auto config = trainer::parse_config(R"({"sequence_length": 64, "max_steps": 4})").value();
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TrainingSettings settings = settings_of(config, std::nullopt, place_of(rank)).value();
      EXPECT_FALSE(may_gather_on_devices(settings));  // they compute on the CPU
      settings.device = {.kind = trainer::ComputeDevice::Kind::cuda};
      EXPECT_TRUE(may_gather_on_devices(settings));
      auto ranks = engine::meet({.place = place_of(rank)}).value();
      const Result<std::string> chosen = choose_gathering(settings, *ranks);
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      EXPECT_FALSE(settings.shares_on_device);
      said[rank] = *chosen;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(said[0], said[1]);
  EXPECT_TRUE(said[0].starts_with("ranks: they share weights and gradients in host memory: ")) << said[0];
}

}  // namespace
}  // namespace penstock::tools
