// How fast are a unit's weights read, depending on where they lie: each beside its tile's states, or all together?
//
// On paper: a tile of 131072 parameters has a weight of 256 KiB in a slot of 1.5 MiB. Beside the states, a unit's
// weights are requests of 256 KiB at strides of 1.5 MiB. Together they are one run, read in requests of the size that
// suits the drive best. The bytes are the same, so the ratio shows what smaller, scattered requests cost. The price is
// one more request for every tile that is written.
//
//   build/bench/unit_weights [FOLDER] [--params N] [--block SIZE] [--quick] [--json]      space: 48 B a parameter
#include <filesystem>

#include "aio/direct_folder.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "aio/store/tile_store.h"
#include "bench/figure.h"
#include "bench/scratch_files.h"
#include "bench/support/flags.h"
#include "cpu_optim/checksum.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kUnits = 8;
constexpr uint64_t kTileElements = 2 * kBlockElements;

StoreShape shape_of(uint64_t parameters) {
  Workload workload;
  for (uint64_t u = 0; u < kUnits; ++u) {
    Unit unit;
    unit.name = "h." + std::to_string(u);
    unit.elements = round_up(parameters / kUnits, kTileElements);
    workload.units.push_back(unit);
  }
  return StoreShape::of(workload, TileMap(workload, kTileElements));
}

class PlacedStore {
 public:
  PlacedStore(const std::string& folder, const StoreShape& shape, WeightPlacement weights, IoEngine& engine,
              std::span<std::byte> memory)
      : folder_(folder), engine_(engine), memory_(memory) {
    std::filesystem::create_directory(folder_);
    aio::CreateOptions options;
    options.memory = memory.first(aio::kChunksUnderWay * aio::kChunkBytes);
    options.checksum = cpu_optim::checksum_function();
    options.weights = weights;
    const auto folders = aio::direct_folders({folder_});
    must(aio::TileStore::create(engine, folders, shape, options,
                                [](TileId, uint32_t, uint64_t, std::span<std::byte> bytes) {
                                  fill_incompressible(0, bytes);
                                  return Status();
                                }));
    store_ = must(aio::TileStore::open(engine, folders, {}));
  }
  ~PlacedStore() {
    store_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Unit after unit, two at a time, as forward does.
  double gbps() {
    const StoreShape& shape = store_->shape();
    const uint64_t unit_bytes = memory_.size() / 2;
    const auto start = std::chrono::steady_clock::now();
    uint64_t bytes = 0;
    std::optional<Transfer> before;
    for (TileId first = 0, end = 0; first < shape.tiles.size(); first = end) {
      std::vector<Extent> extents;
      uint64_t at = 0;
      for (end = first; end < shape.tiles.size() && shape.tiles[end].unit == shape.tiles[first].unit; ++end) {
        const aio::TileStore::Range weight{0, shape.layout(end).places[1].offset_bytes};
        const auto reading = store_->begin_read(end, weight, at);
        for (const Extent& extent : reading->extents) aio::append(extents, extent);
        at += weight.length_bytes;
        store_->end_read(reading->place);  // nothing writes here
      }
      const std::span<std::byte> place = memory_.subspan(shape.tiles[first].unit % 2 * unit_bytes, unit_bytes);
      Transfer now = engine_.read(extents, Lease::over(Tier::host, place), IoEngine::kWhenever);
      if (before) must(std::move(*before).wait().status());
      before = std::move(now);
      bytes += at;
    }
    must(std::move(*before).wait().status());
    return static_cast<double>(bytes) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 1e9;
  }

 private:
  const std::string folder_;
  IoEngine& engine_;
  const std::span<std::byte> memory_;
  std::unique_ptr<aio::TileStore> store_;
};

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock;
  using namespace penstock::bench;
  Flags flags("unit_weights", "How fast are a unit's weights read if they lie together?");
  std::string folder = ".";
  uint64_t parameters = 400'000'000;
  flags.folder(folder, "Where to create two stores; takes 48 B for each parameter");
  flags.options().count("--params", parameters, "Parameters of the model");
  uint64_t block_bytes = 1024 * kKiB;
  flags.options().bytes("--block", block_bytes, "Largest request to the drive");
  flags.parse(argc, argv);
  if (flags.quick()) parameters = 4'000'000;

  const StoreShape shape = shape_of(parameters);
  const uint64_t unit_bytes = std::max(round_up(parameters / kUnits, kTileElements) * 2, aio::kChunksUnderWay * kMiB);
  aio::IoEngineOptions options;
  options.drive.block_bytes = static_cast<uint32_t>(block_bytes);
  aio::MadeIoEngine made = must(aio::make_io_engine(aio::IoEngineChoice::automatic, options));
  auto arena = must(aio::HostArena::make(2 * unit_bytes));
  const std::span<std::byte> memory = must(arena->take("units", 2 * unit_bytes));
  made.engine->register_memory(memory);
  const std::string scratch = folder + "/penstock-bench-weights-" + std::to_string(getpid());
  Figure figure{"unit_weights", "weights of units, together", "GB/s", "beside their states", 1, {}, {}};
  {
    PlacedStore together(scratch + "-a", shape, WeightPlacement::by_unit, *made.engine, memory);
    PlacedStore beside(scratch + "-b", shape, WeightPlacement::beside_state, *made.engine, memory);
    for (int round = 0; round < (flags.quick() ? 5 : 15); ++round) {
      if (round % 2 == 0) figure.ours.push_back(together.gbps());
      figure.theirs.push_back(beside.gbps());
      if (round % 2 == 1) figure.ours.push_back(together.gbps());
    }
  }
  print(figure, flags.json());
}
