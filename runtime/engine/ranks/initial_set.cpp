#include "runtime/engine/ranks/initial_set.h"

#include <memory>

#include "tiering/plan/plan_search.h"

namespace penstock::engine {
namespace {

class InitialContent final : public SetContent {
 public:
  explicit InitialContent(const InitialValues& initial) : initial_(initial) {}

  RootPayload root_of(const RankWorkload&) const override { return {}; }

  aio::FillTile fill_of(uint32_t rank, const RankWorkload& cut, const ShardMap& map, const StoreShape& shape,
                        std::span<std::byte>) override {
    const auto tiles = std::make_shared<InitialTiles>(cut.workload, shape, values_of_rank(initial_, cut, map, rank));
    return [tiles](TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes) {
      return tiles->fill(tile, plane, first_byte, bytes);
    };
  }

 private:
  const InitialValues& initial_;
};

}  // namespace

Status create_set(IoEngine& io, const RankedOptions& options, const NewSet& wanted, const InitialValues& initial,
                  const aio::ScrubProgress& progress) {
  PENSTOCK_TRY(RankedEngine::check(options, wanted.ranks));
  // As RankedEngine::create(): rank 0 chooses for all.
  PENSTOCK_TRY_ASSIGN(request, RankedEngine::request_of(options, {.rank = 0, .ranks = wanted.ranks, .meeting = {}}));
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  const SetSizes sizes{.slots = chosen.slots, .tile_elements = chosen.plan.tiles.tile_elements()};
  InitialContent content(initial);
  return make_set(io, options.engine.request.workload, wanted, sizes, content, progress).status();
}

}  // namespace penstock::engine
