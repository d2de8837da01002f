// Copies of a store's steps: what belongs into one, and that a store becomes one again, or stays what it was.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/store_world.h"

namespace penstock::aio {
namespace {

// The files of a store's durable step, of which what belongs into no copy is zeros.
class Copy {
 public:
  Copy(StoreWorld& world, const TileStore& store, uint32_t drives) {
    for (uint32_t drive = 0; drive < drives; ++drive) {
      folders_.push_back(std::make_shared<MemoryFolder>("/copy" + std::to_string(drive), drive));
      folders_.back()->put(StoreWorld::kFile, MemoryFile::Bytes(world.bytes(drive).size()));
    }
    for (const TileStore::FileRun& run : store.runs_of_durable_step()) {
      for (uint32_t drive = 0; drive < drives; ++drive) {
        if (run.file != world.folder(drive).path() + "/" + StoreWorld::kFile) continue;
        const auto from = world.bytes(drive).begin() + static_cast<std::ptrdiff_t>(run.offset_bytes);
        std::copy_n(from, run.length_bytes, bytes(drive).begin() + static_cast<std::ptrdiff_t>(run.offset_bytes));
        copied_bytes_ += run.length_bytes;
      }
    }
  }

  MemoryFile::Bytes& bytes(uint32_t drive) { return folders_[drive]->bytes(StoreWorld::kFile); }
  uint64_t copied_bytes() const { return copied_bytes_; }
  std::unique_ptr<TileStore> open(IoEngine& engine) {
    const std::vector<std::shared_ptr<DriveFolder>> given(folders_.begin(), folders_.end());
    auto opened = TileStore::open(engine, given, {.purpose = OpenOptions::Purpose::inspect});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(*opened) : nullptr;
  }

 private:
  std::vector<std::shared_ptr<MemoryFolder>> folders_;
  uint64_t copied_bytes_ = 0;
};

struct Setting {
  uint32_t drives, slots;
  uint64_t elements, tile_elements;
};

class StoreCopy : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const auto [drives, slots, elements, tile_elements] = GetParam();
    shape_ = small_shape(3, elements, tile_elements);
    world_ = std::make_unique<StoreWorld>(drives);
    ASSERT_TRUE(world_->create(shape_, slots).ok());
  }
  void run(TileStore& store, uint64_t from, uint64_t until) {
    StoreTrainer trainer(world_->engine(), store);
    for (uint64_t step = from; step < until; ++step) ASSERT_TRUE(trainer.step().ok());
    ASSERT_TRUE(trainer.settle().ok());
    ASSERT_EQ(difference(trainer, shape_, until), "");
  }
  void expect_at(TileStore& store, uint64_t step) {
    EXPECT_EQ(store.payload().step, step);
    StoreTrainer trainer(world_->engine(), store);
    EXPECT_EQ(difference(trainer, shape_, step), "");
    const auto scrubbed = store.scrub(world_->memory());
    ASSERT_TRUE(scrubbed.ok());
    EXPECT_TRUE(scrubbed->bad.empty());
  }

  // A byte of the tile as the store has it now, in the bytes that there are of that drive.
  template <typename BytesOf>
  void damage(TileStore& store, TileId tile, BytesOf bytes_of) {
    const auto reading = store.begin_read(tile);
    ASSERT_TRUE(reading);
    store.end_read(reading->place);
    const Extent& extent = reading->extents.front();
    for (uint32_t drive = 0; drive < GetParam().drives; ++drive) {
      if (extent.file->path() == world_->folder(drive).path() + "/" + StoreWorld::kFile)
        bytes_of(drive)[extent.offset_bytes + 5] ^= std::byte{1};
    }
  }

  StoreShape shape_;
  std::unique_ptr<StoreWorld> world_;
};

TEST_P(StoreCopy, TheStoreBecomesItAndGoesOn) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 3);
  Copy copy(*world_, **store, GetParam().drives);
  run(**store, 3, 8);
  {
    const auto there = copy.open(world_->engine());
    ASSERT_NE(there, nullptr);
    EXPECT_EQ(there->payload().step, 3u);
    const Status became = (*store)->become(*there, world_->memory());
    ASSERT_TRUE(became.ok()) << became.message();
  }
  expect_at(**store, 3);
  store->reset();
  store = world_->open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  expect_at(**store, 3);
  run(**store, 3, 6);
  // Twice the same: the copy is as it was.
  const auto there = copy.open(world_->engine());
  ASSERT_TRUE((*store)->become(*there, world_->memory()).ok());
  expect_at(**store, 3);
}

// What has rotted is brought back also where the copy is of the very step that the store is at.
TEST_P(StoreCopy, MendsTheStoreWhoseStepItHas) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 2);
  Copy copy(*world_, **store, GetParam().drives);
  TileId first = 0;
  while (!shape_.kind(first).updated) ++first;
  damage(**store, first, [&](uint32_t drive) -> auto& { return world_->bytes(drive); });
  const auto damaged = (*store)->scrub(world_->memory());
  ASSERT_TRUE(damaged.ok());
  ASSERT_EQ(damaged->bad.size(), 1u);
  const auto there = copy.open(world_->engine());
  ASSERT_NE(there, nullptr);
  ASSERT_TRUE((*store)->become(*there, world_->memory()).ok());
  expect_at(**store, 2);
  run(**store, 2, 4);
}

TEST_P(StoreCopy, HasOneSlotOfWhatStepsUpdate) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 2);
  uint64_t wanted = GetParam().drives * (*store)->layout().tiles_offset();
  for (TileId tile = 0; tile < shape_.tiles.size(); ++tile)
    if (shape_.kind(tile).updated) wanted += (*store)->layout().tile_bytes(tile);
  EXPECT_EQ(Copy(*world_, **store, GetParam().drives).copied_bytes(), wanted);
}

TEST_P(StoreCopy, IsOfTheDurableStepWhereALaterOneIsNotYet) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 2);
  auto places = [&] {
    std::vector<std::pair<std::string, uint64_t>> all;
    for (const TileStore::FileRun& run : (*store)->runs_of_durable_step()) all.push_back({run.file, run.offset_bytes});
    return all;
  };
  const auto durable = places();
  StoreTrainer trainer(world_->engine(), **store);
  ASSERT_TRUE(trainer.step(/*every=*/1000).ok());
  EXPECT_EQ(places(), durable);
}

TEST_P(StoreCopy, ADamagedOneIsRefusedAndTheStoreStaysWhatItWas) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 2);
  Copy copy(*world_, **store, GetParam().drives);
  // A byte of the last tile that is updated, so that others have been written before it is read.
  TileId last = 0;
  for (TileId tile = 0; tile < shape_.tiles.size(); ++tile)
    if (shape_.kind(tile).updated) last = tile;
  damage(**store, last, [&](uint32_t drive) -> auto& { return copy.bytes(drive); });
  run(**store, 2, 5);
  const auto there = copy.open(world_->engine());
  ASSERT_NE(there, nullptr);
  const Status refused = (*store)->become(*there, world_->memory());
  EXPECT_EQ(refused.code(), Code::kCorrupt);
  EXPECT_NE(refused.message().find("/copy"), std::string::npos) << refused.message();
  expect_at(**store, 5);
  run(**store, 5, 7);
}

TEST_P(StoreCopy, ThatOfAnotherStoreIsRefused) {
  auto store = world_->open();
  ASSERT_TRUE(store.ok());
  run(**store, 0, 1);
  StoreWorld other(GetParam().drives);
  ASSERT_TRUE(other.create(shape_, GetParam().slots).ok());
  auto others = other.open();
  Copy copy(other, **others, GetParam().drives);
  const auto there = copy.open(world_->engine());
  ASSERT_NE(there, nullptr);
  EXPECT_EQ((*store)->become(*there, world_->memory()).code(), Code::kUsage);
  expect_at(**store, 1);
}

// It takes the place of the store's files as it is, so that nothing of them may be missing.
TEST(StoreCopyOfOneSlot, HoldsWhatIsFrozenToo) {
  const StoreShape shape = small_shape(3, 3000, kBlockElements);
  StoreWorld world(2);
  ASSERT_TRUE(world.create(shape, 1).ok());
  auto store = world.open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  Copy copy(world, **store, 2);
  const auto there = copy.open(world.engine());
  ASSERT_NE(there, nullptr);
  const auto scrubbed = there->scrub(world.memory());
  ASSERT_TRUE(scrubbed.ok()) << scrubbed.status().message();
  EXPECT_TRUE(scrubbed->bad.empty()) << scrubbed->bad.front().tensor;
}

INSTANTIATE_TEST_SUITE_P(Settings, StoreCopy,
                         testing::Values(Setting{1, 2, 3000, kBlockElements}, Setting{2, 3, 3000, kBlockElements},
                                         Setting{3, 2, 9 * kBlockElements + 77, 8 * kBlockElements}));

}  // namespace
}  // namespace penstock::aio
