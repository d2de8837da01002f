// StoreWorld: some drives in memory, an engine over them, and the stores that tests make there.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "aio/queued_io_engine.h"
#include "aio/store/store_presence.h"
#include "tests/support/memory_folder.h"
#include "tests/support/store_shapes.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {

class StoreWorld {
 public:
  inline static const std::string kFile = store_file_name(0);

  explicit StoreWorld(uint32_t drives)
      : memory_(Buffer::on_heap(4 * kChunkBytes)), engine_(std::make_unique<MemoryBackend>()) {
    for (uint32_t drive = 0; drive < drives; ++drive) {
      folders_.push_back(std::make_shared<MemoryFolder>("/drive" + std::to_string(drive), drive));
    }
  }

  Status create(const StoreShape& shape, CreateOptions options = {}, const FillTile& fill = {}) {
    options.memory = memory_.bytes();
    options.payload = TrainingNumbers{}.payload();
    return TileStore::create(engine_, given(), shape, options, fill ? fill : FillTile(initial_fill));
  }
  Status create(const StoreShape& shape, uint32_t slots) {
    CreateOptions options;
    options.slots = slots;
    return create(shape, options);
  }

  Status complete(const StoreId& id) { return TileStore::complete(engine_, given(), 0, id); }
  StorePresence presence() { return find_store(engine_, given(), 0).value(); }

  Result<std::unique_ptr<TileStore>> open(OpenOptions options = {}) {
    return TileStore::open(engine_, given(), options);
  }
  Result<std::unique_ptr<TileStore>> open_with(QueuedIoEngine& engine) { return TileStore::open(engine, given(), {}); }
  Result<std::unique_ptr<TileStore>> open(const std::vector<uint32_t>& drives) {
    std::vector<std::shared_ptr<DriveFolder>> some;
    for (uint32_t drive : drives) some.push_back(folders_[drive]);
    return TileStore::open(engine_, some, {});
  }

  QueuedIoEngine& engine() { return engine_; }
  std::span<std::byte> memory() { return memory_.bytes(); }
  MemoryFolder& folder(uint32_t drive) { return *folders_[drive]; }
  MemoryFile::Bytes& bytes(uint32_t drive) { return folders_[drive]->bytes(kFile); }
  std::vector<MemoryFile::Bytes> image() const {
    std::vector<MemoryFile::Bytes> all;
    for (const auto& folder : folders_) {
      all.push_back(folder->has_file(kFile) ? folder->bytes(kFile) : MemoryFile::Bytes());
    }
    return all;
  }
  void put_image(const std::vector<MemoryFile::Bytes>& image) {
    for (size_t drive = 0; drive < folders_.size(); ++drive) folders_[drive]->put(kFile, image[drive]);
  }

 private:
  std::vector<std::shared_ptr<DriveFolder>> given() const { return {folders_.begin(), folders_.end()}; }

  Buffer memory_;
  QueuedIoEngine engine_;
  std::vector<std::shared_ptr<MemoryFolder>> folders_;
};

// Empty, or how the store's current state differs from the plain training after `steps` steps.
inline std::string difference(StoreTrainer& trainer, const StoreShape& shape, uint64_t steps) {
  PlainTraining plain(shape);
  plain.run(steps);
  Result<std::vector<std::vector<std::byte>>> tiles = trainer.read_all();
  if (!tiles.ok()) return tiles.status().message();
  for (TileId tile = 0; tile < tiles->size(); ++tile) {
    if ((*tiles)[tile] != plain.tile(tile)) return "tile " + std::to_string(tile) + " differs";
  }
  return "";
}

}  // namespace penstock::aio
