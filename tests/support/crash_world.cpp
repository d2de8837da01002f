#include "tests/support/crash_world.h"

#include "aio/faulty_backend.h"
#include "tests/support/dying_backend.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

constexpr const char* kFile = "rank0.tiles";
constexpr uint64_t kNeverKilled = ~uint64_t{0};

}  // namespace

CrashWorld::CrashWorld(const StoreShape& shape, const std::vector<PlainTraining>& plain, CrashSetting setting)
    : shape_(shape), plain_(plain), setting_(setting) {
  std::vector<uint64_t> bytes = TileStore::bytes_needed(shape, setting.slots, setting.drives);
  for (uint32_t drive = 0; drive < setting.drives; ++drive) {
    folders_.push_back(std::make_shared<MemoryFolder>("/drive" + std::to_string(drive), drive));
    drives_.push_back(std::make_shared<MemoryFile>("drive", 4096, drive));
    before_.emplace_back(bytes[drive]);
  }
}

std::unique_ptr<Engine> CrashWorld::make_engine(uint64_t seed, uint64_t requests) {
  FaultOptions late;
  late.seed = seed;
  late.delay_chance = 0.5;
  auto faulty = std::make_unique<FaultyBackend>(std::make_unique<MemoryBackend>(), late);
  auto recording = std::make_unique<RecordingBackend>(std::move(faulty), log_);
  return std::make_unique<Engine>(std::make_unique<DyingBackend>(std::move(recording), requests));
}

void CrashWorld::keep_log() {
  for (; kept_ < log_.size(); ++kept_) {
    for (uint32_t drive = 0; drive < folders_.size(); ++drive) {
      if (folders_[drive]->opened(log_[kept_].file)) log_[kept_].file = drives_[drive].get();
    }
  }
  for (const auto& folder : folders_) folder->forget_opened();
}

std::string CrashWorld::create(uint64_t seed, uint64_t requests) {
  Buffer memory = Buffer::on_heap(2 * kChunkBytes);
  CreateOptions options;
  options.slots = setting_.slots;
  options.memory = memory.bytes();
  options.payload = TrainingNumbers{}.payload();
  std::unique_ptr<Engine> engine = make_engine(seed, requests);
  Status created = TileStore::create(*engine, given(), shape_, options, initial_fill);
  engine.reset();
  keep_log();
  if (created.ok()) {
    created_at_ = log_.size();
    acknowledged_.push_back({created_at_, 0});
    return "";
  }
  // A killed process removes nothing.
  for (uint32_t drive = 0; drive < folders_.size(); ++drive) folders_[drive]->put(kFile, before_[drive]);
  return requests == kNeverKilled ? created.message() : "";
}

std::string CrashWorld::live(uint64_t steps, uint64_t seed, uint64_t requests) {
  std::unique_ptr<Engine> engine = make_engine(seed, requests);
  Status status;
  {
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*engine, given(), {});
    status = store.status();
    if (store.ok()) {
      StoreTrainer trainer(*engine, **store);
      trainer.on_acknowledged([this](uint64_t step) { acknowledged_.push_back({log_.size(), step}); });
      for (uint64_t i = 0; i < steps && status.ok(); ++i) status = trainer.step(setting_.every);
      if (status.ok()) status = trainer.settle();
    }
  }
  engine.reset();
  keep_log();
  return requests == kNeverKilled ? status.message() : "";
}

uint64_t CrashWorld::acknowledged(size_t events) const {
  uint64_t newest = 0;
  for (const auto& [from, step] : acknowledged_) {
    if (from <= events) newest = step;
  }
  return newest;
}

CrashWorld CrashWorld::after(const Crash& crash) const {
  CrashWorld world(shape_, plain_, setting_);
  for (uint32_t drive = 0; drive < folders_.size(); ++drive) {
    world.before_[drive] = crash_image(log_, *drives_[drive], before_[drive], crash);
    world.folders_[drive]->put(kFile, world.before_[drive]);
  }
  if (created(crash.events)) {
    world.created_at_ = 1;
    world.acknowledged_.push_back({0, acknowledged(crash.events)});
  }
  return world;
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
  Engine engine(std::make_unique<MemoryBackend>());
  Result<std::unique_ptr<TileStore>> store = TileStore::open(engine, given(), {});
  if (!store.ok()) return "open: " + store.status().message();
  const uint64_t step = (*store)->payload().step;
  if (step < acknowledged) return text("step ", acknowledged, " was acknowledged, found step ", step);
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
