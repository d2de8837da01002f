#include "tiering/plan/pass_bytes.h"

#include <algorithm>

namespace penstock {

WeightBytes weight_bytes(const Workload& workload, const TileMap& tiles, uint32_t number) {
  const Unit& unit = workload.units[number];
  const uint64_t computed = round_up(unit.elements * bytes_of(workload.form.weight), kAlignmentBytes);
  return {.at_rest = tiles.weight_bytes(number), .dequantised = unit.code ? computed : 0};
}

std::vector<uint64_t> kept_units_bytes(const Workload& workload, const TileMap& tiles) {
  std::vector<uint64_t> places{0};
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    const WeightBytes bytes = weight_bytes(workload, tiles, unit);
    places.push_back(places.back() + (bytes.at_rest + bytes.dequantised) * std::max(1u, workload.ranks));
  }
  return places;
}

uint64_t activation_place_bytes(const Use& use, ActivationChoice choice) {
  return round_up(recomputes(choice) ? use.boundary_bytes : use.activation_bytes, kAlignmentBytes);
}

DeviceSumBytes device_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group) {
  const uint64_t elements = workload.units[unit].elements * std::max(1u, workload.ranks);
  const uint64_t rounded = elements * bytes_of(workload.form.gradient);
  DeviceSumBytes bytes{.sum = round_up(elements * sizeof(float), kAlignmentBytes)};
  const bool completes = group >= workload.micro_batches && uses_of(workload, unit).size() == 1;
  if (completes && rounded < elements * sizeof(float)) bytes.rounded = round_up(rounded, kAlignmentBytes);
  return bytes;
}

CollectiveBytes gathered_bytes(const Workload& workload, uint64_t shard_bytes) {
  const uint64_t ranks = std::max(1u, workload.ranks);
  const uint64_t near = workload.node_ranks == 0 ? ranks : std::min<uint64_t>(ranks, workload.node_ranks);
  return {.all = shard_bytes * (ranks - 1), .network = shard_bytes * (ranks - near)};
}

CollectiveBytes reduced_bytes(const Workload& workload, uint64_t shard_bytes) {
  const uint64_t group = std::max(1u, workload.ranks), groups = std::max(1u, workload.groups), all = group * groups;
  const uint64_t near = workload.node_ranks == 0 ? all : std::min<uint64_t>(all, workload.node_ranks);
  const uint64_t piece = ceil_div(shard_bytes, groups), others = shard_bytes - piece;
  CollectiveBytes bytes{.all = piece * (all - 1) + others, .network = piece * (all - near)};
  const uint64_t groups_near = std::max<uint64_t>(1, near / group);
  if (groups > 1) bytes.network += others * (groups - groups_near) / (groups - 1);
  return bytes;
}

uint64_t squares_bytes(uint64_t elements) { return ceil_div(elements, kBlockElements) * sizeof(double); }

uint64_t resting_gradient_bytes(const TileMap& tiles, uint32_t unit) {
  const TileId last = tiles.first_of(unit + 1) - 1;
  const uint64_t elements = tiles[last].first_element + tiles[last].elements;
  return tiles.gradient_bytes(unit) + round_up(squares_bytes(elements), kAlignmentBytes);
}

bool may_rest_on_device(const Workload& workload, uint32_t unit, uint32_t group) {
  const Unit& shape = workload.units[unit];
  if (workload.scope != StepScope::training || workload.ranks * workload.groups > 1 || shape.elements == 0)
    return false;
  if (!shape.trainable) return !shape.code.has_value();
  return group >= workload.micro_batches && uses_of(workload, unit).size() == 1;
}

}  // namespace penstock
