// What making a store leaves, needs and replaces.
#include <gtest/gtest.h>

#include <algorithm>

#include "aio/store/store_presence.h"
#include "tests/support/store_records.h"
#include "tests/support/store_world.h"

namespace penstock::aio {
namespace {

StoreShape twelve_tiles() { return small_shape(12, 3000, kBlockElements); }

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

TEST(StoreCreate, ReplacesUnaskedWhatWasCutShortWhileItWasMade) {
  StoreWorld world(2);
  std::vector<MemoryFile::Bytes> cut_short;
  ASSERT_TRUE(world
                  .create(twelve_tiles(), {},
                          [&](TileId tile, uint32_t, uint64_t, std::span<std::byte>) {
                            if (tile == 7 && cut_short.empty()) cut_short = world.image();
                            return Status();
                          })
                  .ok());
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::there);
  world.put_image(cut_short);
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::half_made);
  EXPECT_NE(world.presence().id, StoreId());
  EXPECT_EQ(world.open().status().code(), Code::kCorrupt);
  ASSERT_TRUE(world.create(small_shape(1, 100, kBlockElements)).ok());
  EXPECT_EQ((*world.open())->shape().units.size(), 2u);

  // On one drive nothing was written yet.
  world.put_image(cut_short);
  std::fill(world.bytes(1).begin(), world.bytes(1).end(), std::byte{0});
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::half_made);
  // Where nothing says that it was being made, it may have been whole.
  std::fill(world.bytes(0).begin(), world.bytes(0).end(), std::byte{0});
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::there);
  EXPECT_EQ(world.create(twelve_tiles()).code(), Code::kUsage);
  world.put_image(cut_short);
  world.bytes(0)[StoreLayout::header_offset(1)] ^= std::byte{1};
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::there) << "a damaged header may have been a whole store's";
}

TEST(StoreCreate, GivesNoFileItsNameBeforeItSaysThatItIsBeingMade) {
  StoreWorld world(2);
  world.folder(1).put(unnamed_file(StoreWorld::kFile), MemoryFile::Bytes(kMiB));  // as a kill leaves it
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::none);
  int looks = 0;
  ASSERT_TRUE(world
                  .create(twelve_tiles(), {},
                          [&](TileId, uint32_t, uint64_t, std::span<std::byte>) {
                            if (++looks == 1) {
                              EXPECT_EQ(world.presence().kind, StorePresence::Kind::half_made);
                            }
                            return Status();
                          })
                  .ok());
  EXPECT_GT(looks, 0);
  for (uint32_t drive = 0; drive < 2; ++drive)
    EXPECT_FALSE(world.folder(drive).has_file(unnamed_file(StoreWorld::kFile)));
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::there);
}

TEST(StoreCreate, LeavesOneOfSeveralHalfMadeUntilAllAre) {
  StoreWorld world(2);
  CreateOptions options;
  options.is_one_of_several = true;
  options.id = StoreId{3, 4};
  ASSERT_TRUE(world.create(twelve_tiles(), options).ok());
  EXPECT_EQ(world.presence(), (StorePresence{StorePresence::Kind::half_made, {3, 4}}));
  EXPECT_EQ(world.open().status().code(), Code::kCorrupt);
  EXPECT_EQ(world.complete({5, 6}).code(), Code::kUsage) << "another's";
  EXPECT_EQ(world.presence().kind, StorePresence::Kind::half_made);
  ASSERT_TRUE(world.complete({3, 4}).ok());
  EXPECT_EQ(world.presence(), (StorePresence{StorePresence::Kind::there, {3, 4}}));
  EXPECT_TRUE(world.open().ok());
}

TEST(StoreCreate, StoresOfSeveralRanksAreHalfMadeWhereOneOfThatMakingIs) {
  using Kind = StorePresence::Kind;
  const StorePresence none, cut_short{Kind::half_made, {1, 2}}, whole{Kind::there, {1, 2}}, other{Kind::there, {1, 3}};
  const auto half_made = [](std::vector<StorePresence> stores) { return is_half_made(stores); };
  EXPECT_FALSE(half_made({}));
  EXPECT_FALSE(half_made({none, none}));
  EXPECT_TRUE(half_made({cut_short}));
  EXPECT_TRUE(half_made({none, cut_short}));
  EXPECT_TRUE(half_made({whole, cut_short}));
  EXPECT_TRUE(half_made({cut_short, none, whole}));
  EXPECT_FALSE(half_made({whole, whole}));
  EXPECT_FALSE(half_made({whole, none})) << "it was taken away";
  EXPECT_FALSE(half_made({other, cut_short}));
  EXPECT_FALSE(half_made({whole, other, cut_short}));
}

TEST(StoreCreate, ReplacesNothingWhereItsFoldersTogetherHaveNoSpace) {
  const StoreShape small = small_shape(1, 100, kBlockElements), large = twelve_tiles();
  const uint64_t needed_bytes = TileStore::bytes_needed(large, 2, 2, {}).front();
  CreateOptions options;
  options.existing = CreateOptions::Existing::replace;
  StoreWorld world(2);
  ASSERT_TRUE(world.create(small).ok());
  world.folder(1).share_file_system(world.folder(0));
  const std::vector<MemoryFile::Bytes> before = world.image();
  for (uint32_t drive = 0; drive < 2; ++drive) {
    ASSERT_LT(before[drive].size(), needed_bytes);
    world.folder(drive).set_free_bytes(needed_bytes - before[drive].size());  // enough for either alone
  }
  const Status created = world.create(large, options);
  EXPECT_EQ(created.code(), Code::kDoesNotFit);
  EXPECT_EQ(created.message().find("/drive0, /drive1: the store needs "), 0u) << created.message();
  EXPECT_TRUE(before == world.image());
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
