#include "runtime/engine/ranks/shard_map.h"

#include <algorithm>

#include "tiering/tile_map.h"

namespace penstock::engine {

ShardMap::ShardMap(const std::vector<Unit>& units, uint32_t ranks, uint32_t group_ranks)
    : ranks_(ranks), group_ranks_(group_ranks) {
  CHECK(group_ranks > 0 && ranks % group_ranks == 0, ranks, " ranks in groups of ", group_ranks);
  for (const Unit& unit : units) elements_.push_back(unit.elements);
}

uint32_t ShardMap::number_of_piece(uint32_t rank) const {
  const uint32_t groups = ranks_ / group_ranks_;
  return rank % group_ranks_ * groups + rank / group_ranks_;
}

uint64_t ShardMap::cut(uint32_t unit, uint32_t number) const {
  if (number == 0) return 0;
  const uint64_t blocks = ceil_div(elements_[unit], kBlockElements);
  const uint64_t before = (blocks * number + unit % ranks_) / ranks_;
  return std::min(before * kBlockElements, elements_[unit]);
}

ElementRun ShardMap::piece(uint32_t unit, uint32_t rank) const {
  const uint32_t number = number_of_piece(rank);
  return {cut(unit, number), cut(unit, number + 1)};
}

ElementRun ShardMap::shard(uint32_t unit, uint32_t rank) const {
  const uint32_t groups = ranks_ / group_ranks_, first = rank % group_ranks_ * groups;
  return {cut(unit, first), cut(unit, first + groups)};
}

uint64_t ShardMap::largest_shard(uint32_t unit) const {
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < group_ranks_; ++rank) most = std::max(most, shard(unit, rank).elements());
  return most;
}

std::vector<uint32_t> ShardMap::group(uint32_t rank) const {
  std::vector<uint32_t> members(group_ranks_);
  for (uint32_t i = 0; i < group_ranks_; ++i) members[i] = group_of(rank) * group_ranks_ + i;
  return members;
}

std::vector<uint32_t> ShardMap::twins(uint32_t rank) const {
  std::vector<uint32_t> members;
  for (uint32_t other = rank % group_ranks_; other < ranks_; other += group_ranks_) members.push_back(other);
  return members;
}

RankWorkload workload_of(const Workload& model, const ShardMap& map, uint32_t rank) {
  RankWorkload here{.workload = model, .unit_here = {}, .model_unit = {}, .parameter_here = {}};
  std::vector<Unit>& units = here.workload.units;
  units.clear();
  here.workload.ranks = 1;
  here.workload.last_backward_use = first_trained_use(model);
  for (uint32_t number = 0; number < model.units.size(); ++number) {
    const Unit& whole = model.units[number];
    const ElementRun shard = map.shard(number, rank);
    here.parameter_here.emplace_back(whole.parameters.size());
    here.unit_here.push_back(std::nullopt);
    if (shard.elements() == 0) continue;
    here.unit_here.back() = static_cast<uint32_t>(units.size());
    here.model_unit.push_back(number);
    Unit unit = whole;
    unit.elements = shard.elements();
    unit.gradient_in_parts = false;  // it comes when it has been added up
    unit.parameters.clear();
    uint64_t begin = 0;
    for (const ParameterRun& run : parameter_runs(whole, model.form)) {
      const ElementRun part{std::max(begin, shard.begin), std::min(run.end_element, shard.end)};
      begin = run.end_element;
      if (!run.parameter || part.begin >= part.end) continue;
      here.parameter_here[number][*run.parameter] = static_cast<uint32_t>(unit.parameters.size());
      // With what is behind it: a shard may begin there.
      unit.parameters.push_back(
          {whole.parameters[*run.parameter].name, part.begin - shard.begin, part.elements(), run.group});
    }
    units.push_back(std::move(unit));
  }
  std::optional<uint32_t> stand_in;
  for (Use& use : here.workload.uses) {
    std::vector<uint32_t> units_here;
    for (uint32_t unit : use.units) {
      if (here.unit_here[unit]) units_here.push_back(*here.unit_here[unit]);
    }
    if (units_here.empty()) {
      if (!stand_in) {
        stand_in = static_cast<uint32_t>(units.size());
        units.push_back({.name = "(of another rank)", .elements = 1, .trainable = false, .parameters = {}});
        here.model_unit.push_back(std::nullopt);
      }
      units_here.push_back(*stand_in);
    }
    use.units = std::move(units_here);
  }
  return here;
}

}  // namespace penstock::engine
