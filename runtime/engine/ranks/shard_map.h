// ShardMap says which elements of each unit a rank owns.
//
// A unit is cut into as many pieces as there are ranks, at multiples of kBlockElements: a block of the norm belongs to
// one rank, so that the norm is the sum over the blocks in the unit's order however it is cut. A unit of fewer blocks
// leaves some ranks without a piece; which ones goes round from unit to unit.
//
// Piece by piece is how gradients are added up. What a rank keeps and updates is its shard: with as many ranks a group
// as there are, its piece. With fewer, every group has all of the model; a shard is then the pieces that its owners in
// the groups add up, and which they give one another. With one rank a group, all of it.
#pragma once

#include <vector>

#include "tiering/unit.h"

namespace penstock::engine {

// Elements [begin, end) of a unit.
struct ElementRun {
  uint64_t begin = 0, end = 0;

  uint64_t elements() const { return end - begin; }
  bool operator==(const ElementRun&) const = default;
};

class ShardMap {
 public:
  // REQUIRES: group_ranks divides ranks.
  ShardMap(const std::vector<Unit>& units, uint32_t ranks, uint32_t group_ranks);

  uint32_t ranks() const { return ranks_; }
  uint32_t group_ranks() const { return group_ranks_; }
  // Ranks of one group are neighbours; the n-th of every group have the same shard.
  uint32_t group_of(uint32_t rank) const { return rank / group_ranks_; }

  // What the rank adds up.
  ElementRun piece(uint32_t unit, uint32_t rank) const;
  // What the rank keeps and updates. Contains its piece.
  ElementRun shard(uint32_t unit, uint32_t rank) const;
  // Elements of the rank that has most of the unit.
  uint64_t largest_shard(uint32_t unit) const;
  // In the order of their shards: one group's, which together have all of a unit.
  std::vector<uint32_t> group(uint32_t rank) const;
  // In the order of their pieces: those that have the same shard.
  std::vector<uint32_t> twins(uint32_t rank) const;

 private:
  // The pieces of a shard are neighbours, so they are not in the order of ranks.
  uint32_t number_of_piece(uint32_t rank) const;
  uint64_t cut(uint32_t unit, uint32_t number) const;

  const uint32_t ranks_, group_ranks_;
  std::vector<uint64_t> elements_;  // by unit
};

// The workload as one rank's engine has it: its shards for units, without those of which it has none, and as one rank
// of one. A use of which it has nothing names a frozen unit of one value for every rank's engine to hold.
struct RankWorkload {
  Workload workload;
  std::vector<std::optional<uint32_t>> unit_here;   // by unit of the model
  std::vector<std::optional<uint32_t>> model_unit;  // by unit here; none of the model: the one that stands in
  // By unit of the model and parameter: its number here. One that is cut has a number on several ranks.
  std::vector<std::vector<std::optional<uint32_t>>> parameter_here;
};
RankWorkload workload_of(const Workload& model, const ShardMap& map, uint32_t rank);

}  // namespace penstock::engine
