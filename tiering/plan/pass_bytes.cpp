#include "tiering/plan/pass_bytes.h"

#include <algorithm>

#include "tiering/code_records.h"

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
  const bool completes = group >= workload.micro_batches && count_uses_of(workload, unit) == 1;
  if (completes && rounded < elements * sizeof(float)) bytes.rounded = round_up(rounded, kAlignmentBytes);
  return bytes;
}

uint64_t gradient_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group, bool on_device) {
  const bool as_sum = on_device && device_sum_bytes(workload, unit, group).rounded == 0;
  return workload.units[unit].elements * (as_sum ? sizeof(float) : bytes_of(workload.form.gradient));
}

std::optional<BlockCode> gathered_code(const Workload& workload, uint32_t unit) {
  const RankCodes& codes = workload.codes;
  const bool is_coded = codes.weights || (codes.frozen_weights && !workload.units[unit].trainable);
  return is_coded && !workload.units[unit].code ? std::optional(BlockCode::int8) : std::nullopt;
}

std::optional<BlockCode> reduced_code(const Workload& workload) {
  return workload.codes.gradients ? std::optional(BlockCode::int4) : std::nullopt;
}

namespace {

uint64_t way_bytes(std::optional<BlockCode> code, Dtype dtype, uint64_t elements) {
  return code ? records_bytes(*code, elements) : elements * bytes_of(dtype);
}

}  // namespace

uint64_t gathered_way_bytes(const Workload& workload, uint32_t unit, uint64_t elements) {
  return way_bytes(gathered_code(workload, unit), workload.form.weight, elements);
}

uint64_t reduced_way_bytes(const Workload& workload, uint64_t elements) {
  return way_bytes(reduced_code(workload), workload.form.gradient, elements);
}

CollectiveBytes gathered_bytes(const Workload& workload, uint64_t shard_bytes) {
  const uint64_t ranks = std::max(1u, workload.ranks);
  const uint64_t near = workload.node_ranks == 0 ? ranks : std::min<uint64_t>(ranks, workload.node_ranks);
  return {.all = shard_bytes * (ranks - 1), .network = shard_bytes * (ranks - near)};
}

CollectiveBytes reduced_bytes(const Workload& workload, uint64_t sent_bytes, uint64_t sum_bytes) {
  const uint64_t group = std::max(1u, workload.ranks), groups = std::max(1u, workload.groups), all = group * groups;
  const uint64_t near = workload.node_ranks == 0 ? all : std::min<uint64_t>(all, workload.node_ranks);
  const uint64_t piece = ceil_div(sent_bytes, groups), others = sum_bytes - ceil_div(sum_bytes, groups);
  CollectiveBytes bytes{.all = piece * (all - 1) + others, .network = piece * (all - near)};
  const uint64_t groups_near = std::max<uint64_t>(1, near / group);
  if (groups > 1) bytes.network += others * (groups - groups_near) / (groups - 1);
  return bytes;
}

CollectiveBytes gathered_unit_bytes(const Workload& workload, const TileMap& tiles, uint32_t unit) {
  const bool is_coded = gathered_code(workload, unit).has_value();
  return gathered_bytes(workload, is_coded ? gathered_way_bytes(workload, unit, workload.units[unit].elements)
                                           : weight_bytes(workload, tiles, unit).at_rest);
}

CollectiveBytes reduced_unit_bytes(const Workload& workload, uint32_t unit, uint64_t sum_bytes) {
  const bool is_coded = reduced_code(workload).has_value();
  const uint64_t sent_bytes = is_coded ? reduced_way_bytes(workload, workload.units[unit].elements) : sum_bytes;
  return reduced_bytes(workload, sent_bytes, sum_bytes);
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
  return group >= workload.micro_batches && count_uses_of(workload, unit) == 1;
}

}  // namespace penstock
