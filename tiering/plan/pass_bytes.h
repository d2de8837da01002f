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

// What it takes where it leaves for other ranks or the updates: as a sum, where the host has others to add to it.
uint64_t gradient_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group, bool on_device);

// What ranks gather a unit's weights in, and send their gradients in; none: as they rest, and as they are added up.
std::optional<BlockCode> gathered_code(const Workload& workload, uint32_t unit);
std::optional<BlockCode> reduced_code(const Workload& workload);
// What so many elements take on their way: of a unit's weights, and of a rank's gradient. REQUIRES: where they are in
// codes, they begin with a block.
uint64_t gathered_way_bytes(const Workload& workload, uint32_t unit, uint64_t elements);
uint64_t reduced_way_bytes(const Workload& workload, uint64_t elements);

// What a collective brings a rank from others, and of it, what comes from other nodes.
struct CollectiveBytes {
  uint64_t all = 0;
  uint64_t network = 0;
};
// Of the other shards of the group, each of `shard_bytes`.
CollectiveBytes gathered_bytes(const Workload& workload, uint64_t shard_bytes);
// A shard's owners, one in each group, each add up a piece of it and send that sum to the others. `sent_bytes`: the
// whole shard in the form in which ranks send their contributions; `sum_bytes`: the same of its sum.
CollectiveBytes reduced_bytes(const Workload& workload, uint64_t sent_bytes, uint64_t sum_bytes);
inline CollectiveBytes reduced_bytes(const Workload& workload, uint64_t shard_bytes) {
  return reduced_bytes(workload, shard_bytes, shard_bytes);
}

// The same of a unit in a plan. `sum_bytes`: what its shard's gradient takes where it is added up.
CollectiveBytes gathered_unit_bytes(const Workload& workload, const TileMap& tiles, uint32_t unit);
CollectiveBytes reduced_unit_bytes(const Workload& workload, uint32_t unit, uint64_t sum_bytes);

// What the sums of squares of so many elements take, by block.
uint64_t squares_bytes(uint64_t elements);
// What the gradient of a unit that rests on the device takes there: tile after tile, then its sums of squares.
uint64_t resting_gradient_bytes(const TileMap& tiles, uint32_t unit);
// Whether a unit may rest on the device: its gradient is complete there, because it is trained by one rank, and all
// micro-batches pass through its one use before the next is used; or it is frozen and is computed with as it rests.
bool may_rest_on_device(const Workload& workload, uint32_t unit, uint32_t group);

}  // namespace penstock
