// Plans of one rank among several: in groups, on nodes, with weights that stay gathered until the step ends.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/random_plans.h"
#include "tiering/plan/collective_moves.h"
#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan_search.h"
#include "tiering/plan/rank_memory.h"

namespace penstock {
namespace {

struct Ranks {
  uint32_t ranks, groups, node_ranks;
};
constexpr Ranks kRanks[] = {{8, 1, 0}, {1, 8, 0}, {32, 1, 8}, {1, 32, 8}, {8, 4, 8}, {2, 4, 4}, {4, 2, 2}, {1, 1, 0}};

Workload among(const Ranks& ranks) {
  Workload work;
  work.ranks = ranks.ranks;
  work.groups = ranks.groups;
  work.node_ranks = ranks.node_ranks;
  return work;
}

// Counted rank by rank, for rank 0: ranks of one group are neighbours, and so are those of one node.
TEST(RankGroups, CountWhatComesFromEachRank) {
  for (const Ranks& ranks : kRanks) {
    const uint64_t shard = 1 << 16, piece = shard / ranks.groups;
    CollectiveBytes gathered, reduced;
    for (uint32_t other = 1; other < ranks.ranks * ranks.groups; ++other) {
      const bool is_far = ranks.node_ranks > 0 && other >= ranks.node_ranks;
      const bool in_group = other < ranks.ranks, is_twin = other % ranks.ranks == 0;
      auto take = [&](CollectiveBytes& into, uint64_t bytes) {
        into.all += bytes;
        into.network += is_far ? bytes : 0;
      };
      take(gathered, in_group ? shard : 0);
      take(reduced, piece + (is_twin ? piece : 0));
    }
    const CollectiveBytes gather = gathered_bytes(among(ranks), shard), reduce = reduced_bytes(among(ranks), shard);
    SCOPED_TRACE(text(ranks.ranks, " a group, ", ranks.groups, " groups, ", ranks.node_ranks, " a node"));
    EXPECT_EQ(gather.all, gathered.all);
    EXPECT_EQ(gather.network, gathered.network);
    EXPECT_EQ(reduce.all, reduced.all);
    EXPECT_EQ(reduce.network, reduced.network);
  }
}

PlanRequest request_of(const Ranks& ranks, bool keeps, bool with_device, uint32_t group) {
  PlanRequest request;
  Workload& work = request.workload = among(ranks);
  for (int i = 0; i < 6; ++i) work.units.push_back({.name = text("unit", i), .elements = 100'000, .parameters = {}});
  work.uses = uses_in_turn(work.units);
  work.uses.back().units.push_back(0);  // as a tied head has it
  for (Use& use : work.uses) {
    use.forward_s = 1e-4;
    use.backward_s = 2e-4;
    use.boundary_bytes = 4096;
  }
  work.scope = StepScope::training;
  work.micro_batches = 4;
  work.keeps_weights = keeps;
  request.machine = test::test_machine(with_device);
  request.machine.collective_gbps = 10;
  request.machine.network_gbps = 1;
  request.budgets = {kGiB, kGiB, 10 * kGiB};
  request.choices.micro_batch_group = group;
  return request;
}

uint64_t device_or_host_bytes(const Plan& plan, bool with_device) {
  return plan.needed_bytes(with_device ? Tier::device : Tier::host);
}

TEST(RankGroups, WhatIsKeptIsGatheredOnceAStepAndElseForEachPass) {
  for (bool with_device : {false, true}) {
    for (uint32_t group : {1u, 4u}) {
      const Result<Plan> kept = make_plan(request_of({4, 1, 0}, true, with_device, group));
      const Result<Plan> again = make_plan(request_of({4, 1, 0}, false, with_device, group));
      ASSERT_TRUE(kept.ok() && again.ok());
      EXPECT_TRUE(validate(*kept).ok()) << validate(*kept).message();
      uint64_t shards = 0;
      for (uint32_t unit = 0; unit < 6; ++unit) shards += kept->tiles.weight_bytes(unit);
      EXPECT_EQ(collective_bytes(*kept, MoveKind::gather), 3 * shards);
      // Each group passes every unit's use twice, but for the last, which has two units.
      EXPECT_EQ(collective_bytes(*again, MoveKind::gather), 4 / group * 3 * 2 * shards);
      EXPECT_EQ(collective_bytes(*kept, MoveKind::reduce), collective_bytes(*again, MoveKind::reduce));
      EXPECT_GT(device_or_host_bytes(*kept, with_device), device_or_host_bytes(*again, with_device));
    }
  }
}

// With one rank a group, weights are all here.
TEST(RankGroups, OfOneRankGatherNothingAndAddUpGradients) {
  for (bool with_device : {false, true}) {
    const PlanRequest request = request_of({1, 4, 0}, false, with_device, 4);
    const Result<Plan> plan = make_plan(request);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(collective_bytes(*plan, MoveKind::gather), 0u);
    EXPECT_GT(collective_bytes(*plan, MoveKind::reduce), 0u);
    EXPECT_EQ(rank_memory(request).gathered_bytes, 0u);
  }
}

TEST(RankGroups, MeetOverTheNetworkAtItsRate) {
  const Result<Plan> flat = make_plan(request_of({8, 1, 4}, false, true, 4));
  const Result<Plan> hybrid = make_plan(request_of({4, 2, 4}, false, true, 4));
  ASSERT_TRUE(flat.ok() && hybrid.ok());
  auto seconds = [&](const Plan& plan, double network_gbps) {
    MachineProfile machine = request_of({8, 1, 4}, false, true, 4).machine;
    machine.network_gbps = network_gbps;
    return simulate(plan, machine, {}).step_s;
  };
  EXPECT_GT(seconds(*flat, 0.1), 2 * seconds(*flat, 1));
  EXPECT_EQ(seconds(*flat, 100), seconds(*flat, 1000));
  auto far = [](const Plan& plan, MoveKind kind) {
    uint64_t bytes = 0;
    for (const Move& move : plan.moves) bytes += move.kind == kind ? move.network_bytes : 0;
    return bytes;
  };
  EXPECT_EQ(far(*flat, MoveKind::gather), collective_bytes(*flat, MoveKind::gather) / 7 * 4);
  EXPECT_EQ(far(*hybrid, MoveKind::gather), 0u);
  EXPECT_GT(far(*hybrid, MoveKind::reduce), 0u);
}

TEST(RankGroups, TakeHostMemoryToGatherInWhereTheCpuComputes) {
  const PlanRequest passing = request_of({4, 1, 0}, false, false, 4);
  // Of six units of 4 x 100,000 values of 2 B: two uses, of which one has two units, or all.
  EXPECT_EQ(rank_memory(passing).gathered_bytes, 3 * 800'000u);
  EXPECT_EQ(rank_memory(request_of({4, 1, 0}, true, false, 4)).gathered_bytes, 6 * 800'000u);
  EXPECT_EQ(rank_memory(request_of({4, 1, 0}, true, true, 4)).gathered_bytes, 0u);
  EXPECT_EQ(rank_memory(request_of({1, 1, 0}, false, false, 4)).gradient_bytes, 0u);
  const Result<Plan> plan = make_plan(passing);
  ASSERT_TRUE(plan.ok());
  uint64_t counted = 0;
  for (const BudgetLine& line : plan->budget_lines) {
    if (std::string(line.name) == "gathered weights") counted += line.bytes;
  }
  EXPECT_EQ(counted, rank_memory(passing).gathered_bytes);
}

// 100,000 values are 1563 blocks, of 68 B in int8 and of 36 B in int4; tied units are gathered twice in their visit.
TEST(RankGroups, SendCodesWhereTheWorkloadSaysSo) {
  for (bool with_device : {false, true}) {
    PlanRequest request = request_of({2, 2, 0}, false, with_device, 4);
    const Result<Plan> exact = make_plan(request);
    request.workload.codes = {.weights = true, .gradients = true};
    const Result<Plan> coded = make_plan(request);
    ASSERT_TRUE(exact.ok() && coded.ok());
    EXPECT_TRUE(validate(*coded).ok()) << validate(*coded).message();
    const uint64_t shard = exact->tiles.weight_bytes(0);
    EXPECT_EQ(collective_bytes(*coded, MoveKind::gather),
              collective_bytes(*exact, MoveKind::gather) / shard * 1563 * 68);
    // Of half a shard the other three's gradients, in codes, and the sums of the other half, which are not.
    uint64_t expected = 0;
    for (const Move& move : exact->moves) {
      if (move.kind == MoveKind::reduce) expected += 3 * (1563 * 36 / 2) + move.bytes / 4;
    }
    EXPECT_EQ(collective_bytes(*coded, MoveKind::reduce), expected);
    request.workload.codes = {.frozen_weights = true};
    request.workload.units[1].trainable = false;
    const Result<Plan> frozen = make_plan(request);
    ASSERT_TRUE(frozen.ok());
    for (const Move& move : frozen->moves) {
      if (move.kind != MoveKind::gather) continue;
      EXPECT_EQ(move.bytes, move.unit == 1 ? 1563 * 68 : shard);
    }
  }
}

TEST(RankGroups, HaveMemoryForCodesAndLessForGradients) {
  PlanRequest request = request_of({4, 1, 0}, false, false, 4);
  const RankMemoryBytes exact = rank_memory(request);
  request.workload.codes = {.weights = true, .gradients = true};
  const RankMemoryBytes coded = rank_memory(request);
  EXPECT_EQ(exact.coded_bytes, 0u);
  // Units of 400,000 values, 6250 blocks: two units of the last use, and the gradients of one from every rank.
  EXPECT_EQ(coded.coded_bytes, 6250 * (2 * 68 + 36u));
  EXPECT_EQ(coded.gathered_bytes, exact.gathered_bytes);
  EXPECT_EQ(coded.gradient_bytes, exact.gradient_bytes - 800'000 + 6250 * 36);
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  uint64_t counted = 0;
  for (const BudgetLine& line : plan->budget_lines) {
    if (std::string(line.name) == "codes of all ranks") counted += line.bytes;
  }
  EXPECT_EQ(counted, coded.coded_bytes);
}

// No rank's gather begins before the weights of two uses before it are out of use.
TEST(RankGroups, HaveRoomForTheWeightsOfTwoUses) {
  const Result<Plan> plan = make_plan(request_of({4, 1, 0}, false, false, 4));
  ASSERT_TRUE(plan.ok());
  std::vector<MoveId> last_of_use;  // in the order in which uses are come to
  uint32_t use = kNone;
  for (MoveId id = 0; id < plan->moves.size(); ++id) {
    const Move& move = plan->moves[id];
    if (move.kind == MoveKind::gather && last_of_use.size() > 1 && move.use != use) {
      EXPECT_NE(std::ranges::find(move.after, last_of_use[last_of_use.size() - 2]), move.after.end()) << id;
    }
    if (move.lane != Lane::compute) continue;
    const bool turns = use == move.use;
    if (!turns) last_of_use.push_back(id);
    last_of_use.back() = id;
    use = move.use;
  }
  EXPECT_GT(last_of_use.size(), 8u);
}

}  // namespace
}  // namespace penstock
