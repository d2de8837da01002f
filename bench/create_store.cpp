// Is a store created as fast as the drive writes, in memory that does not grow with the model?
//
// On paper: every byte is filled, checksummed (60 GB/s a core) and written once; a flush, some table pages and a root
// record follow. With 16 chunks of 1 MiB the drive never waits, so the ratio is 1 apart from preallocating the second
// slots. The plain file of the same bytes, written once by a loop that does nothing else, is as new to the drive as the
// store. Where something was written before, a drive may be faster (a virtual one need not find room) or slower (flash
// has to move old data). Both are measured, and their ratio. Memory: the chunks, and 40 B of checksums for each block
// of 65536 elements, so 16 MiB and 1 MB for 1.3e9 parameters.
//
//   build/bench/create_store [FOLDER] [--params N] [--quick] [--json]      space: 24 B for each parameter
#include <cstring>
#include <filesystem>
#include <thread>

#include "aio/direct_folder.h"
#include "aio/drive_info.h"
#include "aio/store/tile_store.h"
#include "aio/write_once.h"
#include "bench/figure.h"
#include "bench/scratch_files.h"
#include "bench/support/drive_statistics.h"
#include "bench/support/flags.h"
#include "cpu_optim/checksum.h"
#include "tools/nvme/rig.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kUnitElements = 50'000'000;
constexpr uint64_t kTileElements = 2 * kBlockElements;  // as the planner chooses
constexpr uint64_t kMemoryBytes = aio::kChunksUnderWay * aio::kChunkBytes;

StoreShape shape_of(uint64_t parameters) {
  Workload workload;
  for (uint64_t first = 0; first < parameters; first += kUnitElements) {
    Unit unit;
    unit.name = "h." + std::to_string(workload.units.size());
    unit.elements = std::min(kUnitElements, parameters - first);
    workload.units.push_back(unit);
  }
  return StoreShape::of(workload, TileMap(workload, kTileElements));
}

// Costs a copy, no more, and no drive can shrink it.
class Filler {
 public:
  Filler() : pattern_(2 * aio::kChunkBytes) { fill_incompressible(0, pattern_); }
  void operator()(std::span<std::byte> bytes) {
    std::memcpy(bytes.data(), pattern_.data() + (count_ * 64) % aio::kChunkBytes, bytes.size());
    ++count_;
  }

 private:
  std::vector<std::byte> pattern_;
  uint64_t count_ = 0;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A file system that discards what is removed does so later, and would slow what is measured next.
void await_discards(const std::string& folder) {
  constexpr auto kQuiet = std::chrono::milliseconds(500);
  sync();
  const std::string device = must(aio::describe_drive(folder)).device;
  uint64_t before = 0;
  for (int i = 0; i < 60; ++i) {
    const uint64_t now = bench::drive_statistics(device).value_or(bench::DriveStatistics()).discards;
    if (i > 0 && now == before) return;
    before = now;
    std::this_thread::sleep_for(kQuiet);
  }
}

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

class Maker {
 public:
  Maker(const std::string& folder, uint64_t parameters)
      : folder_(folder + "/penstock-bench-store-" + std::to_string(getpid())),
        shape_(shape_of(parameters)),
        made_(must(aio::make_io_engine())),
        arena_(must(aio::HostArena::make(kMemoryBytes))),
        memory_(must(arena_->take("chunks", kMemoryBytes))) {
    fill_incompressible(0, memory_);
    made_.engine->register_memory(memory_);
    std::filesystem::create_directory(folder_);
    for (TileId tile = 0; tile < shape_.tiles.size(); ++tile) bytes_ += shape_.layout(tile).size_bytes;
  }
  ~Maker() { std::filesystem::remove_all(folder_); }

  double store_gbps() {
    aio::CreateOptions options;
    options.existing = aio::CreateOptions::Existing::replace;
    options.memory = memory_;
    options.checksum = cpu_optim::checksum_function();
    auto fill = [&](TileId, uint32_t, uint64_t, std::span<std::byte> bytes) {
      filler_(bytes);
      return Status();
    };
    const double seconds = seconds_of(
        [&] { must(aio::TileStore::create(*made_.engine, aio::direct_folders({folder_}), shape_, options, fill)); });
    std::filesystem::remove(folder_ + "/" + aio::store_file_name(0));
    return static_cast<double>(bytes_) / seconds / 1e9;
  }

  // A file of the same bytes, made before the clock starts, then written once and flushed.
  double file_gbps() {
    BufferPool pool(Tier::host, memory_, aio::kChunkBytes);
    auto file = must(aio::DirectFile::create(folder_ + "/plain", bytes_));
    const double seconds =
        seconds_of([&] { must(aio::write_once(*file, *made_.engine, pool, [](uint64_t, std::span<std::byte>) {})); });
    return static_cast<double>(bytes_) / seconds / 1e9;
  }

 private:
  const std::string folder_;
  const StoreShape shape_;
  aio::MadeIoEngine made_;
  std::unique_ptr<aio::HostArena> arena_;
  std::span<std::byte> memory_;
  Filler filler_;
  uint64_t bytes_ = 0;
};

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock;
  using namespace penstock::bench;
  Flags flags("create_store", "Is a store created as fast as the drive writes one plain file?");
  std::string folder = ".";
  uint64_t parameters = 1'300'000'000;
  flags.folder(folder, "Where to create the store; takes 24 B for each parameter");
  flags.options().count("--params", parameters, "Parameters of the model");
  flags.parse(argc, argv);
  if (flags.quick()) parameters = 4'000'000;

  Maker maker(folder, parameters);
  char name[64];
  std::snprintf(name, sizeof(name), "%.3g parameters", static_cast<double>(parameters));
  Figure rate{"create_store", name, "GB/s", "a new plain file", 0.9, {}, {}};
  Figure in_place{"create_store", name, "GB/s", "the drive, written in place", 0.9, {}, {}};
  Figure newness{"create_store", "a new plain file", "GB/s", "the drive, written in place", 0, {}, {}};
  auto rig = must(tools::Rig::make(
      {.paths = {folder}, .wanted_bytes = flags.quick() ? 64 * kMiB : 2 * kGiB, .memory_bytes = 16 * kMiB},
      tools::no_tick));
  auto drive_gbps = [&] {
    return must(rig->run({.read_share = 0, .depth = 8, .seconds = flags.quick() ? 0.05 : 1.0}, tools::no_tick)).gbps();
  };
  for (int round = 0; round < 5; ++round) {
    await_discards(folder);
    if (round % 2 == 0) rate.ours.push_back(maker.store_gbps());
    await_discards(folder);
    in_place.theirs.push_back(drive_gbps());
    rate.theirs.push_back(maker.file_gbps());
    await_discards(folder);
    if (round % 2 == 1) rate.ours.push_back(maker.store_gbps());
  }
  newness.ours = rate.theirs;
  newness.theirs = in_place.theirs;
  in_place.ours = rate.ours;
  print(rate, flags.json());
  print(in_place, flags.json());
  print(newness, flags.json());
  Figure memory{"create_store", "memory", "MB allowed", "MB used at peak", 1, {300}, {peak_rss_mb()}};
  print(memory, flags.json());
}
