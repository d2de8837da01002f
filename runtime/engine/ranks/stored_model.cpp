#include "runtime/engine/ranks/stored_model.h"

#include <algorithm>

#include "tiering/check.h"

namespace penstock::engine {

Status another_step(uint32_t rank, uint64_t step, uint64_t step_of_rank_0) {
  return Status(
      Code::kUsage, text("store: rank 0 is at step ", step_of_rank_0, ", rank ", rank, " at step ", step),
      "start the run again: it brings all ranks to the newest step that they have in common; or go back to one "
      "that is kept, which `penstock checkpoint ls` lists");
}

Status another_course(uint32_t rank, uint64_t step) {
  return Status(Code::kUsage,
                text("store of rank ", rank, ": has come to step ", step, " by another course than rank 0's"),
                "give the stores of all ranks as they were at one time: one of these was put back, or went on alone");
}

uint64_t tile_elements_of(const aio::TileStore& store) {
  uint64_t most = 0;
  for (const StoreShape::Tile& tile : store.shape().tiles) most = std::max(most, tile.elements);
  return round_up(most, kBlockElements);
}

StoredModel::StoredModel(const StoreSet& set, const Workload& model)
    : set_(set), map_(model.units, static_cast<uint32_t>(set.stores.size()), set.group_ranks) {
  for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
    cuts_.push_back(rank_workload(model, map_, rank));
    tiles_.emplace_back(cuts_.back().workload, tile_elements_of(store(rank)));
  }
}

Status StoredModel::check() const {
  const RootPayload& first = store(0).payload();
  for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
    const StoreShape expected = rank_shape(cuts_[rank], tiles_[rank], rank, map_.ranks());
    if (const std::string difference = expected.first_difference(store(rank).shape()); !difference.empty()) {
      return Status(Code::kUsage, text("store of rank ", rank, ": holds another model: ", difference),
                    "give the stores of all ranks of one run");
    }
    if (store(rank).id() != store(0).id()) {
      return Status(
          Code::kUsage,
          text("store of rank ", rank, ": belongs to run ", store(rank).id(), ", rank 0's to ", store(0).id()),
          "give the stores of all ranks of one run");
    }
    if (const uint64_t step = store(rank).payload().step; step != first.step)
      return another_step(rank, step, first.step);
    if (course_of(store(rank).payload()) != course_of(first)) return another_course(rank, first.step);
  }
  return Status();
}

Result<EngineState> StoredModel::counts(const Workload& model) const {
  std::optional<EngineState> all;
  std::vector<bool> has_unit(model.units.size());
  std::vector<std::vector<bool>> has_parameter;
  for (const Unit& unit : model.units) has_parameter.emplace_back(unit.parameters.size());
  bool agree = true;
  const auto take = [&agree](uint64_t count, uint64_t& into, auto has) {
    agree = agree && (!has || into == count);
    into = count;
    has = true;
  };
  for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
    PENSTOCK_TRY_ASSIGN(state, parse_engine_state(store(rank).payload(), cuts_[rank].workload));
    if (!all) {
      all = engine_state(model, state.updates);
      all->course = state.course;
    }
    agree = agree && all->updates == state.updates;
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const std::optional<uint32_t> here = cuts_[rank].unit_here[unit];
      if (!here) continue;
      UnitCounts& counts = all->counts[unit];
      take(state.counts[*here].unnamed, counts.unnamed, has_unit[unit]);
      for (size_t i = 0; i < counts.parameters.size(); ++i) {
        const std::optional<uint32_t> parameter = cuts_[rank].parameter_here[unit][i];
        if (parameter) take(state.counts[*here].parameters[*parameter], counts.parameters[i], has_parameter[unit][i]);
      }
    }
  }
  if (!agree) return Status(Code::kCorrupt, "store: the ranks' counts of updates differ");
  return std::move(*all);
}

StoredRun StoredModel::find(uint32_t unit, uint32_t plane, uint64_t first, uint64_t count) const {
  uint32_t rank = 0;
  while (map_.shard(unit, rank).end <= first) ++rank;
  const uint64_t in_shard = first - map_.shard(unit, rank).begin;
  const TileMap& tiles = tiles_[rank];
  const auto tile =
      static_cast<TileId>(tiles.first_of(*cuts_[rank].unit_here[unit]) + in_shard / tiles.tile_elements());
  const uint64_t in_tile = in_shard - tiles[tile].first_element;
  CHECK(in_tile % kBlockElements == 0, "element ", first, " of unit ", unit, " begins no block");
  return {rank, tile, plane, {in_tile, std::min(in_tile + count, tiles[tile].elements)}};
}

}  // namespace penstock::engine
