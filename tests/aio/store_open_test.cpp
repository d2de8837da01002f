// What opening refuses, and that it then touches nothing.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/store_records.h"
#include "tests/support/store_world.h"
#include "tiering/store_header.h"

namespace penstock::aio {
namespace {

StoreShape twelve_tiles() { return small_shape(12, 3000, kBlockElements); }

// A store of three drives after a few steps, and its opening's refusal.
class StoreOpen : public testing::Test {
 protected:
  StoreOpen() : shape_(twelve_tiles()), world_(3) {
    CHECK(world_.create(shape_).ok());
    Result<std::unique_ptr<TileStore>> store = world_.open();
    StoreTrainer trainer(world_.engine(), **store);
    for (int i = 0; i < 3; ++i) CHECK(trainer.step().ok());
    CHECK(trainer.settle().ok());
  }

  // Opens, expects a refusal that says `words`, and that no byte has changed.
  void expect_refused(Code code, const std::string& words, OpenOptions options = {}) {
    std::vector<MemoryFile::Bytes> before = world_.image();
    Result<std::unique_ptr<TileStore>> store = world_.open(options);
    ASSERT_FALSE(store.ok()) << "expected: " << words;
    EXPECT_EQ(store.status().code(), code) << store.status().message();
    EXPECT_NE(store.status().message().find(words), std::string::npos) << store.status().message();
    EXPECT_TRUE(before == world_.image()) << "opening has written";
  }

  // Both copies of a drive's header, with a right checksum.
  void set_format(uint32_t drive, uint32_t format) {
    for (uint32_t copy = 0; copy < 2; ++copy) {
      std::byte* header = world_.bytes(drive).data() + StoreLayout::header_offset(copy);
      std::memcpy(header + 8, &format, 4);
      seal(std::span(header, kRecordBytes));
    }
  }

  StoreHeader header(uint32_t drive) {
    return *StoreHeader::decode(std::span(world_.bytes(drive)).first(kRecordBytes), "header");
  }
  void put_header(uint32_t drive, uint32_t copy, const StoreHeader& header) {
    const std::vector<std::byte> bytes = header.encode();
    std::memcpy(world_.bytes(drive).data() + StoreLayout::header_offset(copy), bytes.data(), bytes.size());
  }

  StoreShape shape_;
  StoreWorld world_;
};

TEST_F(StoreOpen, TakesTheFoldersInAnyOrder) {
  Result<std::unique_ptr<TileStore>> store = world_.open(std::vector<uint32_t>{2, 0, 1});
  ASSERT_TRUE(store.ok()) << store.status().message();
  StoreTrainer trainer(world_.engine(), **store);
  EXPECT_EQ(difference(trainer, shape_, 3), "");
}

TEST_F(StoreOpen, NamesADriveThatIsMissing) {
  Result<std::unique_ptr<TileStore>> store = world_.open(std::vector<uint32_t>{0, 2});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().message(), "/drive0: a store of 3 drives, but 2 drives given: drive 1 is missing");
  CHECK(world_.folder(1).remove_file(StoreWorld::kFile).ok());
  expect_refused(Code::kUsage, "/drive1: no store: rank0.tiles is missing");
}

// Every record is whole and has a right checksum, and they do not belong together.
TEST_F(StoreOpen, RefusesHeadersThatContradictOneAnother) {
  StoreHeader of_five = header(1);
  of_five.shares = {2000, 2000, 2000, 2000, 2000};
  of_five.drive = 4;  // where the others have but three places
  put_header(1, 1, of_five);
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: its two headers contradict each other");
  put_header(1, 0, of_five);
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: its header contradicts that of /drive0/rank0.tiles");
}

// As its description has it, laying the store out would take longer than anybody waits.
TEST_F(StoreOpen, RefusesADescriptionOfMoreThanTheFilesHold) {
  StoreShape vast = shape_;
  for (StoreShape::Tile& tile : vast.tiles) tile.elements = uint64_t{1} << 44;
  const std::vector<std::byte> bytes = vast.encode();
  for (uint32_t drive = 0; drive < 3; ++drive) {
    StoreHeader header = this->header(drive);
    header.shape_digest = vast.digest();
    for (uint32_t copy = 0; copy < 2; ++copy) put_header(drive, copy, header);
    std::memcpy(world_.bytes(drive).data() + StoreLayout::shape_offset(), bytes.data(), bytes.size());
  }
  expect_refused(Code::kCorrupt, "what is stored takes");
}

TEST_F(StoreOpen, NamesADriveThatWasGivenTwice) {
  world_.folder(2).put(StoreWorld::kFile, world_.bytes(1));
  expect_refused(Code::kUsage, "/drive2: drive 1 of the store, as is /drive1");
}

TEST_F(StoreOpen, NamesADriveOfAnotherStore) {
  StoreWorld other(3);
  ASSERT_TRUE(other.create(shape_).ok());
  world_.folder(1).put(StoreWorld::kFile, other.bytes(1));
  expect_refused(Code::kCorrupt, "/drive1: belongs to store ");
}

TEST_F(StoreOpen, NamesAnotherModelsState) {
  StoreShape other = small_shape(12, 2000, kBlockElements);
  expect_refused(Code::kUsage, "holds another model's state: unit h.0 has 2000 elements here and 3000 there",
                 {.expected_shape = &other});
}

TEST_F(StoreOpen, NamesAnotherFormat) {
  set_format(1, 7);
  expect_refused(Code::kUsage, "/drive1/rank0.tiles: store header: written in format 7, this program reads format 1");
}

TEST_F(StoreOpen, NamesAFileOfAnotherLength) {
  world_.bytes(2).resize(world_.bytes(2).size() - 4096);
  expect_refused(Code::kCorrupt, "/drive2/rank0.tiles: ");
}

TEST_F(StoreOpen, NamesAFileThatIsNoStore) {
  std::fill(world_.bytes(0).begin(), world_.bytes(0).end(), std::byte{42});
  expect_refused(Code::kUsage, "/drive0/rank0.tiles: store header: not a penstock store");
  world_.folder(0).put(StoreWorld::kFile, MemoryFile::Bytes(100));
  expect_refused(Code::kUsage, "/drive0/rank0.tiles: 100 B are no store");
}

TEST_F(StoreOpen, NamesADriveWhoseContentsAreGone) {
  std::fill(world_.bytes(1).begin(), world_.bytes(1).end(), std::byte{0});
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: empty, but /drive0 has store ");
}

TEST_F(StoreOpen, NamesAHeaderThatIsDamagedTwice) {
  world_.bytes(1)[StoreLayout::header_offset(0) + 50] ^= std::byte{1};
  world_.bytes(1)[StoreLayout::header_offset(1) + 50] ^= std::byte{1};
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: store header: its checksum does not match");
}

TEST(StoreCreate, LeavesNothingBehindWhenItFails) {
  StoreShape shape = twelve_tiles();
  for (int refused_call : {0, 1, 7, 30}) {
    StoreWorld world(3);
    int calls = 0;
    Status created = world.create(shape, {}, [&](TileId, uint32_t, uint64_t, std::span<std::byte>) {
      return calls++ == refused_call ? Status(Code::kUsage, "weights.safetensors: ends early") : Status();
    });
    EXPECT_EQ(created.message(), "weights.safetensors: ends early");
    for (uint32_t drive = 0; drive < 3; ++drive) EXPECT_FALSE(world.folder(drive).has_file(StoreWorld::kFile));
  }
}

TEST(StoreCreate, SaysHowMuchIsNeededBeforeAnythingIsTouched) {
  StoreShape shape = twelve_tiles();
  StoreWorld world(2);
  world.folder(1).set_free_bytes(100000);
  Status created = world.create(shape);
  EXPECT_EQ(created.code(), Code::kDoesNotFit);
  EXPECT_NE(created.message().find("/drive1: the store needs "), std::string::npos) << created.message();
  EXPECT_FALSE(world.folder(0).has_file(StoreWorld::kFile));
}

TEST(StoreCreate, ReplacesOnlyWhenAsked) {
  StoreWorld world(2);
  ASSERT_TRUE(world.create(twelve_tiles()).ok());
  std::vector<MemoryFile::Bytes> before = world.image();
  EXPECT_EQ(world.create(small_shape(1, 100, kBlockElements)).code(), Code::kUsage);
  EXPECT_TRUE(before == world.image());
  CreateOptions options;
  options.existing = CreateOptions::Existing::replace;
  ASSERT_TRUE(world.create(small_shape(1, 100, kBlockElements), options).ok());
  EXPECT_EQ((*world.open())->shape().units.size(), 2u);
}

// Creation takes memory for its chunks and nothing that grows with the model.
TEST(StoreCreate, WritesEveryByteOnceInOrder) {
  StoreShape shape = small_shape(2, 20 * kBlockElements + 5, 16 * kBlockElements);
  StoreWorld world(2);
  uint64_t filled_bytes = 0, expected_bytes = 0;
  TileId last = 0;
  ASSERT_TRUE(world
                  .create(shape, {},
                          [&](TileId tile, uint32_t, uint64_t, std::span<std::byte> bytes) {
                            EXPECT_GE(tile, last);
                            EXPECT_LE(bytes.size(), kChunkBytes);
                            last = tile;
                            filled_bytes += bytes.size();
                            std::fill(bytes.begin(), bytes.end(), std::byte{1});
                            return Status();
                          })
                  .ok());
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    for (const TileLayout::Place& place : shape.layout(tile).places) expected_bytes += place.length_bytes;
  }
  EXPECT_EQ(filled_bytes, expected_bytes);
}

TEST(StoreCreate, WritesThePlanesOfSmallTilesTogether) {
  StoreShape shape = small_shape(1, 64 * kBlockElements, kBlockElements);
  StoreWorld world(1);
  ASSERT_TRUE(world.create(shape).ok());
  uint64_t tile_bytes = 0;
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) tile_bytes += shape.layout(tile).size_bytes;
  // Behind the tiles: headers and roots twice, the shape, a page of the table.
  EXPECT_LE(world.engine().counters(0).writes, ceil_div(tile_bytes, kChunkBytes - 256 * kKiB) + 16);
  EXPECT_TRUE((*world.open())->scrub(world.memory())->bad.empty());
}

}  // namespace
}  // namespace penstock::aio
