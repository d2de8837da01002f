// Adapters beside a frozen model that does not fit into host memory: where they rest, and what a step reads.
#include <gtest/gtest.h>

#include "tiering/plan/plan_builder.h"
#include "tiering/plan/planner.h"

namespace penstock {
namespace {

constexpr uint64_t kBlockBytes = 8 * kBlockElements * 2;  // of a frozen block in bf16

// An embedding, blocks with adapters of a 32nd of their elements, and a head.
PlanRequest adapted_model(uint64_t host_bytes) {
  PlanRequest request;
  Workload& work = request.workload;
  auto frozen = [&](std::string name, uint64_t elements) {
    work.units.push_back({.name = std::move(name), .elements = elements, .trainable = false, .parameters = {}});
    work.uses.push_back({.name = work.units.back().name, .units = {static_cast<uint32_t>(work.units.size() - 1)}});
  };
  frozen("embedding", 4 * kBlockElements);
  for (int block = 0; block < 12; ++block) {
    frozen(text("block", block), 8 * kBlockElements);
    work.uses.back().units.push_back(static_cast<uint32_t>(work.units.size()));
    work.units.push_back({.name = text("adapters", block), .elements = kBlockElements / 4, .parameters = {}});
  }
  frozen("head", 4 * kBlockElements);
  for (Use& use : work.uses) use.boundary_bytes = 4096, use.activation_bytes = 65536;
  work.scope = StepScope::training;
  work.clipping.norm = 1;
  work.micro_batches = 2;
  request.choices.tile_elements = kBlockElements;
  request.choices.activations = ActivationChoice::recompute;
  request.budgets.host_bytes = host_bytes;
  return request;
}

// By role of a unit: how many of its tiles' weights, or states, rest in host memory.
struct InHost {
  uint32_t adapters = 0, states = 0, frozen = 0;
};
InHost in_host(const PlanRequest& request, const Plan& plan) {
  InHost found;
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    const bool trains = request.workload.units[plan.tiles[tile].unit].trainable;
    const bool here = plan.placements[tile].weight_in_host();
    found.adapters += trains && here;
    found.frozen += !trains && here;
    found.states += trains && plan.placements[tile].state_in_host();
  }
  return found;
}

TEST(AdapterPlacement, AdaptersRestInHostMemoryBeforeAnyFrozenWeight) {
  uint32_t most_frozen = 0;
  // From what a plan needs at least, to where all fits.
  for (uint64_t megabytes = 6; megabytes <= 64; ++megabytes) {
    const PlanRequest request = adapted_model(megabytes * kMiB);
    const Result<Plan> plan = make_plan(request);
    if (!plan.ok()) continue;
    const InHost here = in_host(request, *plan);
    EXPECT_GE(here.frozen, most_frozen) << "more memory holds no less, " << megabytes << " MiB";
    if (here.frozen > 0) {
      EXPECT_EQ(here.adapters, 12u) << megabytes << " MiB";
      EXPECT_EQ(here.states, 12u) << megabytes << " MiB";
    }
    most_frozen = here.frozen;
  }
  EXPECT_EQ(most_frozen, 12 * 8 + 4 + 4) << "the largest budget holds all";
}

TEST(AdapterPlacement, AStepReadsWhatIsFrozenOnceAPassAndNothingElse) {
  PlanRequest request = adapted_model(64 * kMiB);
  request.choices.weights = WeightTier::nvme;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const InHost here = in_host(request, *plan);
  EXPECT_EQ(here.frozen, 0u);
  EXPECT_EQ(here.states, 12u);
  // Backward begins with the head, whose weights are still there, and ends at the first block with adapters: neither
  // the head nor the embedding is read again.
  EXPECT_EQ(plan->read_bytes(), 2 * 12 * kBlockBytes + kBlockBytes / 2 + kBlockBytes / 2);
}

TEST(AdapterPlacement, WhatIsChosenIsFollowed) {
  PlanRequest request = adapted_model(64 * kMiB);
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(in_host(request, *plan).adapters, 0u);
  request.choices.host_state_share = 0.5;
  plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(in_host(request, *plan).states, 6u);
  EXPECT_EQ(in_host(request, *plan).frozen, 0u);
}

TEST(AdapterPlacement, OnlyTheFewAreFavoured) {
  PlanRequest request = adapted_model(64 * kMiB);
  const TileMap adapters(request.workload, kBlockElements);
  EXPECT_EQ(ranges_placed_first(request.workload, adapters), 12u);
  for (Unit& unit : request.workload.units) unit.trainable = unit.name != "block5";
  const TileMap most(request.workload, kBlockElements);
  EXPECT_EQ(ranges_placed_first(request.workload, most), 0u);
  for (Unit& unit : request.workload.units) unit.trainable = true;
  const TileMap all(request.workload, kBlockElements);
  EXPECT_EQ(ranges_placed_first(request.workload, all), 0u);
}

}  // namespace
}  // namespace penstock
