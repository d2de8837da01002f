#include "tests/support/crash_world.h"

#include "tiering/check.h"

namespace penstock::aio {
namespace {

std::vector<MemoryFile::Bytes> blank_images(const StoreShape& shape, CrashSetting setting) {
  std::vector<MemoryFile::Bytes> images;
  for (uint64_t bytes : TileStore::bytes_needed(shape, setting.slots, setting.drives)) images.emplace_back(bytes);
  return images;
}

}  // namespace

CrashWorld::CrashWorld(const StoreShape& shape, const std::vector<PlainTraining>& plain, CrashSetting setting)
    : CrashWorld(shape, plain, setting, RecordedDrives(blank_images(shape, setting))) {}

std::string CrashWorld::create(uint64_t seed, uint64_t requests) {
  Buffer memory = Buffer::on_heap(2 * kChunkBytes);
  CreateOptions options;
  options.slots = setting_.slots;
  options.weights = setting_.weights;
  options.memory = memory.bytes();
  options.payload = TrainingNumbers{}.payload();
  auto engine = std::make_unique<QueuedIoEngine>(drives_.make_backend(seed, requests));
  Status created = TileStore::create(*engine, drives_.folders(), shape_, options, initial_fill);
  engine.reset();
  drives_.life_ended();
  if (created.ok()) {
    drives_.acknowledge(0);
    return "";
  }
  drives_.put_files();  // a killed process removes nothing
  return requests == RecordedDrives::kNeverKilled ? created.message() : "";
}

std::string CrashWorld::live(uint64_t steps, uint64_t seed, uint64_t requests) {
  auto engine = std::make_unique<QueuedIoEngine>(drives_.make_backend(seed, requests));
  Status status;
  {
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*engine, drives_.folders(), {});
    status = store.status();
    if (store.ok()) {
      StoreTrainer trainer(*engine, **store);
      trainer.on_acknowledged([this](uint64_t step) { drives_.acknowledge(step); });
      for (uint64_t i = 0; i < steps && status.ok(); ++i) status = trainer.step(setting_.every);
      if (status.ok()) status = trainer.settle();
    }
  }
  engine.reset();
  drives_.life_ended();
  return requests == RecordedDrives::kNeverKilled ? status.message() : "";
}

std::string CrashWorld::compare(StoreTrainer& trainer, uint64_t step) const {
  Result<std::vector<std::vector<std::byte>>> tiles = trainer.read_all();
  if (!tiles.ok()) return tiles.status().message();
  for (TileId tile = 0; tile < tiles->size(); ++tile) {
    if ((*tiles)[tile] != plain_[step].tile(tile)) return text("step ", step, ": tile ", tile, " differs");
  }
  return "";
}

std::string CrashWorld::check(uint64_t acknowledged) {
  QueuedIoEngine engine(std::make_unique<MemoryBackend>());
  Result<std::unique_ptr<TileStore>> store = TileStore::open(engine, drives_.folders(), {});
  if (!store.ok()) return "open: " + store.status().message();
  const uint64_t step = (*store)->payload().step;
  if (step < acknowledged) return text("step ", acknowledged, " was acknowledged, found step ", step);
  if (!TrainingNumbers::of((*store)->payload()))
    return text("opened: step ", step, ": the state beside its tiles differs");
  StoreTrainer trainer(engine, **store);
  if (std::string wrong = compare(trainer, step); !wrong.empty()) return "opened: " + wrong;
  for (uint64_t i = 0; i < 2; ++i) {
    if (Status ran = trainer.step(); !ran.ok()) return "going on: " + ran.message();
  }
  if (Status ran = trainer.settle(); !ran.ok()) return "going on: " + ran.message();
  if (std::string wrong = compare(trainer, step + 2); !wrong.empty()) return "two steps on: " + wrong;
  return "";
}

}  // namespace penstock::aio
