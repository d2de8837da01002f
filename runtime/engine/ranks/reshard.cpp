#include "runtime/engine/ranks/reshard.h"

#include <algorithm>

#include "runtime/engine/ranks/read_ahead.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

static_assert(round_up(ReadAhead::kMemoryBytes, 2 * kMiB) + aio::kChunksUnderWay * aio::kChunkBytes <= kReshardBytes);

class StoredContent final : public SetContent {
 public:
  StoredContent(IoEngine& io, const StoredModel& source, EngineState counts)
      : io_(io), source_(source), counts_(std::move(counts)) {}

  uint64_t memory_bytes() const override { return ReadAhead::kMemoryBytes; }

  RootPayload root_of(const RankWorkload& cut) const override {
    const RootPayload& before = source_.store(0).payload();
    RootPayload root{.step = before.step, .loss_scale = before.loss_scale};
    if (!before.engine_state.empty()) root.engine_state = counts_of(cut);
    return root;
  }

  aio::FillTile fill_of(uint32_t, const RankWorkload& cut, const ShardMap& map, const StoreShape& shape,
                        std::span<std::byte> memory) override {
    const auto ahead = std::make_shared<ReadAhead>(io_, source_, memory, cut, map, shape);
    return [this, ahead](TileId tile, uint32_t, uint64_t, std::span<std::byte> bytes) {
      const uint64_t before = ahead->read_bytes();
      const Status filled = ahead->fill(tile, bytes);
      read_bytes_ += ahead->read_bytes() - before;
      return filled;
    };
  }

  uint64_t read_bytes() const { return read_bytes_; }

 private:
  std::string counts_of(const RankWorkload& cut) const {
    EngineState here = engine_state(cut.workload, counts_.updates);
    here.course = counts_.course;
    for (uint32_t unit = 0; unit < counts_.counts.size(); ++unit) {
      if (!cut.unit_here[unit]) continue;
      UnitCounts& counts = here.counts[*cut.unit_here[unit]];
      counts.unnamed = counts_.counts[unit].unnamed;
      for (size_t i = 0; i < cut.parameter_here[unit].size(); ++i) {
        if (const auto parameter = cut.parameter_here[unit][i])
          counts.parameters[*parameter] = counts_.counts[unit].parameters[i];
      }
    }
    return encode(here);
  }

  IoEngine& io_;
  const StoredModel& source_;
  const EngineState counts_;
  uint64_t read_bytes_ = 0;
};

}  // namespace

Result<DriveBytes> reshard(IoEngine& io, const StoreSet& set, const Workload& model, const NewSet& wanted,
                           const aio::ScrubProgress& progress) {
  CHECK(!set.stores.empty(), "no store");
  const uint32_t ranks = set.stores.front()->shape().ranks;
  if (set.stores.size() != ranks) {
    return Status(Code::kUsage, text("store: ", set.stores.size(), " of ", ranks, " ranks' stores are here"),
                  "the folders of all ranks' drives");
  }
  const StoredModel source(set, model);
  PENSTOCK_TRY(source.check());
  PENSTOCK_TRY_ASSIGN(counts, source.counts(model));
  SetSizes sizes{.slots = source.store(0).layout().slots()};
  for (const auto& store : set.stores) sizes.tile_elements = std::max(sizes.tile_elements, tile_elements_of(*store));
  StoredContent content(io, source, std::move(counts));
  PENSTOCK_TRY_ASSIGN(written_bytes, make_set(io, model, wanted, sizes, content, progress));
  return DriveBytes{.read_bytes = content.read_bytes(), .written_bytes = written_bytes};
}

}  // namespace penstock::engine
