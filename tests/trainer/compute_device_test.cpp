#include "runtime/trainer/compute_device.h"

#include <gtest/gtest.h>

namespace penstock::trainer {
namespace {

using Kind = ComputeDevice::Kind;

TrainConfig config_of(const std::string& device, const std::string& budget = "") {
  auto config =
      parse_config(text(R"({"penstock": {"device": ")", device, R"(", "device_budget": ")", budget, R"("}})"));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

Status no_driver(int) { return Status(Code::kEnvironment, "no driver", "install it"); }

// As a machine with two GPUs.
Status one_of_two(int index) {
  return index < 2 ? Status() : Status(Code::kUsage, text("CUDA device ", index, " does not exist"), "use 0 to 1");
}

engine::RankPlace ranks_of(uint32_t rank, uint32_t ranks, uint32_t hosts = 1) {
  return {.rank = rank, .ranks = ranks, .meeting = "ranks", .hosts = hosts};
}

TEST(ComputeDevice, IsTheFirstGpuWhereTheConfigLeavesItOpenElseTheCpuAndSaysWhy) {
  EXPECT_EQ(choose_device(config_of("auto"), {}, one_of_two)->kind, Kind::cuda);
  const auto here = choose_device(config_of("auto"), {}, no_driver);
  EXPECT_EQ(here->kind, Kind::cpu);
  EXPECT_EQ(here->why, "no driver");
  EXPECT_EQ(choose_device(config_of("auto", "1GiB"), {}, no_driver)->kind, Kind::host);
  EXPECT_EQ(choose_device(config_of("auto", "1GiB"), {}, one_of_two)->kind, Kind::cuda);
  EXPECT_EQ(choose_device(config_of("auto"), ranks_of(0, 2), one_of_two)->kind, Kind::cpu);
  EXPECT_EQ(choose_device(config_of("auto", "1GiB"), ranks_of(0, 2), one_of_two)->kind, Kind::host);
  EXPECT_EQ(choose_device(config_of("auto"), {}, {})->kind, Kind::cpu);
}

TEST(ComputeDevice, IsWhatTheConfigNames) {
  EXPECT_EQ(choose_device(config_of("cpu"), {}, one_of_two)->kind, Kind::cpu);
  EXPECT_EQ(choose_device(config_of("host", "1GiB"), {}, one_of_two)->kind, Kind::host);
  const auto second = choose_device(config_of("cuda:1"), {}, one_of_two);
  EXPECT_EQ(second->kind, Kind::cuda);
  EXPECT_EQ(second->index, 1);
  EXPECT_EQ(choose_device(config_of("cuda"), {}, one_of_two)->index, 0);
}

TEST(ComputeDevice, IsAGpuForEachRankOfAHostUnlessTheConfigSaysOne) {
  EXPECT_EQ(choose_device(config_of("cuda"), ranks_of(1, 2), one_of_two)->index, 1);
  EXPECT_EQ(choose_device(config_of("cuda"), ranks_of(3, 4, 2), one_of_two)->index, 1);
  EXPECT_EQ(choose_device(config_of("cuda:0"), ranks_of(1, 2), one_of_two)->index, 0);
}

TEST(ComputeDevice, RefusesWhatCannotBeUsedAndSaysWhatToDo) {
  auto refusal = [](const std::string& device, const std::string& budget, const engine::RankPlace& place,
                    const CudaUsable& usable) {
    const auto chosen = choose_device(config_of(device, budget), place, usable);
    EXPECT_FALSE(chosen.ok()) << device;
    EXPECT_FALSE(chosen.status().remedy().empty()) << device;
    return chosen.status().message();
  };
  EXPECT_EQ(refusal("cuda", "", {}, no_driver), "config: penstock.device: cuda: no driver");
  EXPECT_EQ(refusal("cuda:2", "", {}, one_of_two), "config: penstock.device: cuda:2: CUDA device 2 does not exist");
  EXPECT_EQ(refusal("cuda", "", ranks_of(2, 4), one_of_two),
            "config: penstock.device: cuda: rank 2: CUDA device 2 does not exist");
  EXPECT_NE(refusal("cpu", "1GiB", {}, one_of_two).find("device_budget: 1GiB"), std::string::npos);
  EXPECT_NE(refusal("host", "", {}, one_of_two).find("device_budget"), std::string::npos);
}

TEST(ComputeDevice, IsRefusedByNameWhereThereIsNoSuchKind) {
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "CUDA", ""}) {
    const auto config = parse_config(text(R"({"penstock": {"device": ")", device, R"("}})"));
    ASSERT_FALSE(config.ok()) << device;
    EXPECT_NE(config.status().message().find("cuda:N"), std::string::npos) << config.status().message();
  }
}

}  // namespace
}  // namespace penstock::trainer
