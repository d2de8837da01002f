// What a pass through a unit takes: its weights, what backward needs of forward, its gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/tile_map.h"
#include "tiering/unit.h"

namespace penstock {

// What a unit's weights take as they rest, which is what moves, and where they are dequantised to be computed with: 0
// if they are computed with as they rest.
struct WeightBytes {
  uint64_t at_rest = 0;
  uint64_t dequantised = 0;
};
WeightBytes weight_bytes(const Workload& workload, const TileMap& tiles, uint32_t unit);

// Where a device keeps the weights of each unit, gathered, until a step ends; behind them, what they take together.
std::vector<uint64_t> kept_units_bytes(const Workload& workload, const TileMap& tiles);

// What the plan has room for, of one use and micro-batch: what backward needs of forward.
uint64_t activation_place_bytes(const Use& use, ActivationChoice choice);

// What a unit's gradient of one use takes on a device that adds it up: the sum in fp32, and what it is rounded to where
// it is then complete, because all micro-batches pass through the unit's one use before the next is used.
// `group`: how many micro-batches pass through a unit before the next is used.
struct DeviceSumBytes {
  uint64_t sum = 0;
  uint64_t rounded = 0;
};
DeviceSumBytes device_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group);

// What a collective brings a rank from others, and of it, what comes from other nodes.
struct CollectiveBytes {
  uint64_t all = 0;
  uint64_t network = 0;
};
// The other shards of the group.
CollectiveBytes gathered_bytes(const Workload& workload, uint64_t shard_bytes);
// Each of the shard's owners in the groups adds up its piece of it, and gives it the others.
CollectiveBytes reduced_bytes(const Workload& workload, uint64_t shard_bytes);

// What the sums of squares of so many elements take, by block.
uint64_t squares_bytes(uint64_t elements);
// What the gradient of a unit that rests on the device takes there: tile after tile, then its sums of squares.
uint64_t resting_gradient_bytes(const TileMap& tiles, uint32_t unit);
// Whether a unit may rest on the device: its gradient is complete there, because it is trained by one rank, and all
// micro-batches pass through its one use before the next is used; or it is frozen and is computed with as it rests.
bool may_rest_on_device(const Workload& workload, uint32_t unit, uint32_t group);

}  // namespace penstock
