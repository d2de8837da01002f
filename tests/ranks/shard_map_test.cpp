#include "runtime/engine/ranks/shard_map.h"

#include <gtest/gtest.h>

#include "tiering/tile_map.h"

namespace penstock::engine {
namespace {

std::vector<Unit> units_of(const std::vector<uint64_t>& elements) {
  std::vector<Unit> units;
  for (uint64_t each : elements) {
    Unit unit;
    unit.name = text("unit", units.size());
    unit.elements = each;
    units.push_back(unit);
  }
  return units;
}

TEST(ShardMap, CutsEveryUnitAtBlocksOfTheNorm) {
  const std::vector<Unit> units = units_of({1, 65'536, 65'537, 1'000'000, 70'000'000});
  for (uint32_t ranks : {1u, 2u, 3u, 4u, 8u}) {
    for (uint32_t group = 1; group <= ranks; ++group) {
      if (ranks % group != 0) continue;
      const ShardMap map(units, ranks, group);
      for (uint32_t unit = 0; unit < units.size(); ++unit) {
        uint64_t pieces = 0, most = 0, least = ~uint64_t{0};
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const ElementRun piece = map.piece(unit, rank), shard = map.shard(unit, rank);
          if (piece.elements() > 0) {
            EXPECT_EQ(piece.begin % kBlockElements, 0u);
          }
          EXPECT_LE(shard.begin, piece.begin);
          EXPECT_GE(shard.end, piece.end);
          pieces += piece.elements();
          most = std::max(most, ceil_div(piece.elements(), kBlockElements));
          least = std::min(least, ceil_div(piece.elements(), kBlockElements));
        }
        EXPECT_EQ(pieces, units[unit].elements);
        EXPECT_LE(most, least + 1) << ranks << " ranks, unit " << unit;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          uint64_t at = 0, in_shard = 0;
          for (uint32_t member : map.group(rank)) {
            EXPECT_EQ(map.shard(unit, member).begin, at);
            at = map.shard(unit, member).end;
          }
          EXPECT_EQ(at, units[unit].elements);
          for (uint32_t twin : map.twins(rank)) {
            EXPECT_EQ(map.shard(unit, twin), map.shard(unit, rank));
            in_shard += map.piece(unit, twin).elements();
          }
          EXPECT_EQ(in_shard, map.shard(unit, rank).elements());
        }
      }
    }
  }
}

TEST(ShardMap, LeavesSmallUnitsToEachRankInTurn) {
  const ShardMap map(units_of(std::vector<uint64_t>(8, 1000)), 4, 4);
  std::vector<int> owned(4);
  for (uint32_t unit = 0; unit < 8; ++unit) {
    for (uint32_t rank = 0; rank < 4; ++rank) owned[rank] += map.shard(unit, rank).elements() == 1000;
  }
  EXPECT_EQ(owned, std::vector<int>(4, 2));
}

// What is behind a parameter belongs to it, though the parameter ends in the shard before.
TEST(RankWorkload, GivesShardsTheGroupsOfTheirElements) {
  Workload model;
  model.units = units_of({3 * kBlockElements});
  model.units[0].group = 7;
  model.units[0].parameters = {{"a", 0, kBlockElements - 128 * 3 + 1, 1},
                               {"b", kBlockElements - 128, 40, 2},
                               {"c", kBlockElements + 128, kBlockElements, 3}};
  const ShardMap map(model.units, 3, 3);
  std::vector<uint32_t> groups, expected;
  uint64_t at = 0;
  for (const ParameterRun& run : parameter_runs(model.units[0], model.form)) {
    expected.insert(expected.end(), run.end_element - at, run.group);
    at = run.end_element;
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const RankWorkload here = workload_of(model, map, rank);
    ASSERT_TRUE(validate(here.workload).ok());
    at = 0;
    for (const ParameterRun& run : parameter_runs(here.workload.units[0], model.form)) {
      groups.insert(groups.end(), run.end_element - at, run.group);
      at = run.end_element;
    }
    EXPECT_EQ(at, map.shard(0, rank).elements());
  }
  EXPECT_EQ(groups, expected);
}

TEST(RankWorkload, HasSomethingForEveryUse) {
  Workload model;
  model.scope = StepScope::training;
  model.units = units_of({10, 10, 10});
  model.uses = uses_in_turn(model.units);
  const ShardMap map(model.units, 4, 4);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const RankWorkload here = workload_of(model, map, rank);
    EXPECT_TRUE(validate(here.workload).ok());
    EXPECT_EQ(here.workload.uses.size(), 3u);
  }
}

}  // namespace
}  // namespace penstock::engine
