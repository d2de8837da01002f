// The stage that ranks choose where their config says none: by links, drives and memory, alike on all of them.
#include "tools/train/stage_of_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tools/plan/least_plan.h"

namespace penstock::tools {
namespace {

constexpr const char* kConfig = R"({"sequence_length": 64, "max_steps": 4, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2, "penstock": {"weights": "nvme", "host_state_share": 0}})";

// The built-in model on a machine that was not measured; sizes are a node's.
struct Site {
  uint64_t host_bytes = 8 * kGiB, nvme_bytes = 100 * kGiB;
  double collective_gbps = 10, network_gbps = 10;
  uint32_t ranks = 2, hosts = 1;
  uint64_t second_host_bytes = 8 * kGiB, second_nvme_bytes = 100 * kGiB;

  TrainingSettings settings(uint32_t rank = 0) const {
    trainer::TrainConfig config = trainer::parse_config(kConfig).value();
    const engine::RankPlace place{.rank = rank, .ranks = ranks, .meeting = {}, .hosts = hosts};
    TrainingSettings settings = settings_of(config, std::nullopt, place).value();
    PlanRequest& request = settings.engine.request;
    request.budgets.host_bytes = (place.host() == 0 ? host_bytes : second_host_bytes) / place.ranks_here();
    request.budgets.nvme_bytes = (place.host() == 0 ? nvme_bytes : second_nvme_bytes) / place.ranks_here();
    request.process_bytes = 16 * kMiB;
    DriveRates drive;
    drive.burst = MixCurve::flat(0.5);
    request.machine.drives = {drive};
    request.machine.host_gbps = 20;
    request.machine.collective_gbps = collective_gbps;
    request.machine.network_gbps = network_gbps;
    for (Use& use : request.workload.uses) {
      use.forward_s = 1e-3;
      use.backward_s = 2e-3;
      use.activation_bytes = 4 * kMiB;
      use.boundary_bytes = kMiB / 4;
    }
    return settings;
  }
};

struct Chosen {
  uint32_t stage = 9, shard_ranks = 9;
  std::string words;
  bool operator==(const Chosen&) const = default;
};

// By all ranks together, each on a thread of its own.
std::vector<Chosen> choose(const Site& site, bool has_store = false) {
  static int meetings = 0;
  const std::string meeting = text("stages of ", ::getpid(), ":", ++meetings);
  std::vector<Chosen> chosen(site.ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < site.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TrainingSettings settings = site.settings(rank);
      auto ranks = engine::meet({.place = {.rank = rank, .ranks = site.ranks, .meeting = meeting}}).value();
      EXPECT_TRUE(leaves_stage_open(settings));
      Result<std::string> words = choose_stage(settings, has_store, *ranks);
      ASSERT_TRUE(words.ok()) << words.status().message();
      EXPECT_FALSE(leaves_stage_open(settings));
      const auto state = trainer::parse_trainer_state(settings.engine.initial_state);
      EXPECT_EQ(trainer::parse_config(state->config)->zero_stage, settings.config.zero_stage);  // what roots keep
      chosen[rank] = {*settings.config.zero_stage, settings.config.shard_ranks, *words};
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Chosen& other : chosen) EXPECT_EQ(other, chosen.front()) << other.words;
  return chosen;
}

// The least that the engine can do with, of each rank.
uint64_t least_bytes(const Site& site, uint32_t stage, Tier tier) {
  TrainingSettings settings = site.settings();
  settings.config.zero_stage = stage;
  const engine::RankedOptions options = settings.ranked();
  PlanRequest here = engine::RankedEngine::request_of(options, settings.place).value();
  here.budgets = {.device_bytes = 0, .host_bytes = 0, .nvme_bytes = 0};  // short of all that it takes
  const engine::RankMemory beside = engine::RankedEngine::memory_of(options, site.ranks);
  const uint64_t shared = tier == Tier::host ? beside.shared_bytes() + beside.sums_bytes : 0;
  return needed_bytes(least_plan(here).value(), tier) + shared;
}

TEST(StageOfRun, IsChosenByLinksAndByMemory) {
  Site slow{.collective_gbps = 0.02};
  const Chosen ample = choose(slow).front();
  EXPECT_NE(ample.stage, 3u) << ample.words;
  EXPECT_NE(ample.words.find("the fastest that fits, "), std::string::npos) << ample.words;
  EXPECT_NE(ample.words.find("stage 3: "), std::string::npos) << ample.words;
  // Room for shards, not for all of the state; memory for what passes gather, not for all weights.
  const uint64_t of_passes = least_bytes(slow, 3, Tier::host), of_all = least_bytes(slow, 2, Tier::host);
  ASSERT_GT(of_all, of_passes + 4 * kMiB);
  Site tight = slow;
  tight.nvme_bytes = 3 * least_bytes(slow, 3, Tier::nvme);
  tight.host_bytes = of_passes + of_all;
  const Chosen sharded = choose(tight).front();
  EXPECT_EQ(sharded.stage, 3u) << sharded.words;
  EXPECT_NE(sharded.words.find("the only one that fits: stage 2 does not fit, stage 0 does not fit"), std::string::npos)
      << sharded.words;
  tight.host_bytes = 40 * kMiB;
  EXPECT_EQ(choose(tight).front().words, "zero_optimization: stage 3, none fits, and this one takes the least memory");
}

TEST(StageOfRun, FitsEveryHost) {
  Site site{.collective_gbps = 0.02, .network_gbps = 0.02, .ranks = 4, .hosts = 2};
  const Chosen ample = choose(site).front();
  ASSERT_EQ(ample.stage, 2u) << ample.words;
  site.second_host_bytes = least_bytes(site, 3, Tier::host) + least_bytes(site, 2, Tier::host);
  const Chosen chosen = choose(site).front();
  EXPECT_EQ(chosen.stage, 3u) << chosen.words;
  EXPECT_NE(chosen.words.find("stage 2 does not fit"), std::string::npos) << chosen.words;
  // Of one that would be slower anyway the same is said.
  Site fast{.ranks = 4, .hosts = 2};
  fast.second_nvme_bytes = 3 * least_bytes(fast, 3, Tier::nvme);
  const Chosen fastest = choose(fast).front();
  EXPECT_EQ(fastest.stage, 3u) << fastest.words;
  EXPECT_NE(fastest.words.find("stage 0 does not fit"), std::string::npos) << fastest.words;
}

TEST(StageOfRun, OfAStoreThatIsThereHasItsShards) {
  const Site slow{.collective_gbps = 1e-4};
  const Chosen chosen = choose(slow, /*has_store=*/true).front();
  EXPECT_EQ(chosen.stage, 2u) << chosen.words;
  EXPECT_EQ(chosen.words.find("stage 0"), std::string::npos) << chosen.words;
}

TEST(StageOfRun, KeepsToTheNodesWhereTheNetworkIsSlow) {
  const Site nodes{.collective_gbps = 10, .network_gbps = 0.02, .ranks = 4, .hosts = 2};
  const Chosen chosen = choose(nodes).front();
  EXPECT_EQ(std::pair(chosen.stage, chosen.shard_ranks), std::pair(3u, 2u)) << chosen.words;
  EXPECT_NE(chosen.words.find("stage 3 with mics_shard_size 2, the fastest that fits"), std::string::npos)
      << chosen.words;
}

TEST(StageOfRun, IsThatOfTheStoreWhereItGoesOn) {
  trainer::TrainConfig config =
      trainer::parse_config(R"({"zero_optimization": {"stage": 3, "mics_shard_size": 2}})").value();
  TrainingSettings before = Site{}.settings();
  before.config.zero_stage = 3;
  before.config.shard_ranks = 2;
  const auto stored = std::optional(before.initial_state());
  trainer::TrainConfig open = trainer::parse_config("{}").value(),
                       own = trainer::parse_config(R"({"zero_optimization": {"stage": 0}})").value();
  ASSERT_TRUE(keep_stage(stored, open).ok() && keep_stage(stored, own).ok());
  EXPECT_EQ(std::pair(open.zero_stage, open.shard_ranks), std::pair(config.zero_stage, config.shard_ranks));
  EXPECT_EQ(std::pair(*own.zero_stage, own.shard_ranks), std::pair(0u, 0u));
}

}  // namespace
}  // namespace penstock::tools
