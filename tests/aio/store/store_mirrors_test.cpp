// What a store reads from the copy on another drive where one of them has not kept it.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "tests/aio/store/store_media.h"
#include "tests/support/scripted_backend.h"

namespace penstock::aio {
namespace {

TEST_P(StoreMirrors, TakesARottenRootFromItsMirrorAndSaysSo) {
  rot_root(1, sequence_of(kSteps));
  EXPECT_EQ(expect_goes_on(), kSteps);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("/drive1/rank0.tiles: root"), std::string::npos);
  rot_root(0, sequence_of(kSteps + 2));
  EXPECT_EQ(expect_goes_on(), kSteps + 2);
}

// What a crash leaves between the writes of the newest root on its drives.
TEST_P(StoreMirrors, WritesTheNewestRootToTheDriveThatLacksIt) {
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    world_.put_image(images_[kSteps]);
    const uint64_t place = StoreLayout::root_offset(sequence_of(kSteps) % 2);
    std::memcpy(&world_.bytes(drive)[place], &images_[kSteps - 1][drive][place], kRecordBytes);
    Result<std::unique_ptr<TileStore>> store = world_.open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_EQ((*store)->payload().step, kSteps);
    EXPECT_TRUE((*store)->open_report().notes.empty());
    EXPECT_TRUE(world_.image() == images_[kSteps]) << "drive " << drive << " still has the older root";
  }
}

TEST_P(StoreMirrors, TakesTheNewestCopyOfAPage) {
  for (uint32_t page = 0; page < layout().table().pages(); ++page) {
    for (uint32_t drive = 0; drive < drives(); ++drive) {
      SCOPED_TRACE(testing::Message() << layout().table().page_name(page) << " of drive " << drive);
      world_.put_image(images_[kSteps]);
      uint64_t differ = 0;
      for (uint32_t slot = 0; slot < 2; ++slot) {
        const uint64_t at = layout().page_offset(page, slot), bytes = layout().table().page_bytes();
        differ += std::memcmp(&world_.bytes(drive)[at], &images_[1][drive][at], bytes) != 0;
        std::memcpy(&world_.bytes(drive)[at], &images_[1][drive][at], bytes);
      }
      if (page == 0) {
        ASSERT_GT(differ, 0u);
      }
      ASSERT_EQ(expect_goes_on(), kSteps);
    }
  }
}

// Its roots alone look like a crash between the writes of the newest root; its pages and tiles are older.
TEST_P(StoreMirrors, OpensTheStepBeforeWhereADriveIsStaleByOneRoot) {
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    SCOPED_TRACE(testing::Message() << "drive " << drive);
    world_.put_image(images_[kSteps]);
    world_.folder(drive).put(StoreWorld::kFile, images_[kSteps - 1][drive]);
    const std::vector<MemoryFile::Bytes> stale = world_.image();
    ASSERT_TRUE(world_.open({.purpose = OpenOptions::Purpose::inspect}).ok());
    EXPECT_TRUE(world_.image() == stale) << "inspecting has written";
    ASSERT_EQ(expect_goes_on(), kSteps - 1);
    EXPECT_TRUE(noted("every block of step 3 was verified")) << notes();
    EXPECT_TRUE(noted("step 4 is lost, the store is at step 3: ")) << notes();
  }
}

// The same, where no tile of the newest step lies on that drive: then that step is whole.
TEST_P(StoreMirrors, KeepsTheNewestStepWhereAStaleDriveHasNoneOfItsTiles) {
  world_.put_image(images_[kSteps]);
  const uint64_t tiles = layout().file_ranges(0, 0, 0, 4096).front().file_offset_bytes;
  std::copy_n(images_[kSteps - 1][1].begin(), tiles, world_.bytes(1).begin());
  EXPECT_EQ(expect_goes_on(), kSteps);
  EXPECT_TRUE(noted("older than on another drive: every block of step 4 was verified")) << notes();
}

// A page that is damaged says nothing about the rest of its drive, unless the root that names it is not there either.
TEST_P(StoreMirrors, VerifiesEveryBlockWhereADriveLacksTheRootAndAPage) {
  rot(1, layout().page_offset(0, page_slot()) + 70);
  EXPECT_EQ(expect_goes_on(), kSteps);
  EXPECT_FALSE(noted("was verified")) << notes();
  world_.put_image(images_[kSteps]);
  rot(1, layout().page_offset(0, page_slot()) + 70);
  const uint64_t place = StoreLayout::root_offset(sequence_of(kSteps) % 2);
  std::memcpy(&world_.bytes(1)[place], &images_[kSteps - 1][1][place], kRecordBytes);
  EXPECT_EQ(expect_goes_on(), kSteps);
  EXPECT_TRUE(noted("missing, and so is the root that names it: every block of step 4 was verified")) << notes();
}

// An older root in that place on one drive tells nothing where on another the root has rotted: a write may be lost,
// too.
TEST_P(StoreMirrors, WaitsForADriveThatMayAloneHaveTheNewestRoot) {
  if (drives() < 3) return;
  const uint64_t offset = StoreLayout::root_offset(sequence_of(kSteps) % 2);
  rot_root(1, sequence_of(kSteps));
  std::memcpy(&world_.bytes(2)[offset], &images_[kSteps - 2][2][offset], kRecordBytes);
  const std::vector<MemoryFile::Bytes> damaged = world_.image();
  QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [&](const Piece& piece) {
    const bool hit = piece.operation == Operation::read && piece.offset_bytes == offset && piece.file->drive() == 0;
    return hit ? EIO : ScriptedBackend::kPass;
  }));
  Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
  ASSERT_FALSE(store.ok()) << "at step " << (*store)->payload().step;
  EXPECT_EQ(store.status().code(), Code::kEnvironment) << store.status().message();
  EXPECT_TRUE(world_.image() == damaged);
  EXPECT_EQ(expect_goes_on(), kSteps);
}

TEST_P(StoreMirrors, RestoresTablePagesHeadersAndShapeFromMirrors) {
  for (uint64_t at : {StoreLayout::header_offset(0), StoreLayout::header_offset(1), StoreLayout::shape_offset(),
                      layout().page_offset(0, 0), layout().page_offset(0, 1)}) {
    SCOPED_TRACE(testing::Message() << "offset " << at);
    world_.put_image(images_[kSteps]);
    rot(1, at + 70);
    std::vector<MemoryFile::Bytes> rotten = world_.image();
    ASSERT_TRUE(world_.open({.purpose = OpenOptions::Purpose::inspect}).ok());
    EXPECT_TRUE(rotten == world_.image()) << "inspecting has written";
    bool meant = at != layout().page_offset(0, 1 - kSteps % 2);  // the other slot has an older page
    ASSERT_TRUE(world_.open().ok());
    EXPECT_EQ(world_.image() == images_[kSteps], meant);
    EXPECT_EQ(expect_goes_on(), kSteps);
  }
}

TEST_P(StoreMirrors, NoticesADriveThatWentBackInTime) {
  world_.folder(1).put(StoreWorld::kFile, images_[kSteps - 3][1]);
  EXPECT_NE(refusal().find("no step can be recovered"), std::string::npos) << refusal();
}

// A scrub reads what a root names, and refuses a store of which none can be followed.
TEST_P(StoreMirrors, RecommendsAScrubWhereItCanReadTheStore) {
  const std::string scrub = "`penstock checkpoint scrub` names every bad block";
  world_.folder(1).put(StoreWorld::kFile, images_[kSteps - 3][1]);
  EXPECT_NE(world_.open().status().remedy().find(scrub), std::string::npos);
  world_.put_image(images_[kSteps]);
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    for (uint32_t slot = 0; slot < 2; ++slot) rot(drive, layout().page_offset(0, slot) + 70);
  }
  const Status refused = world_.open().status();
  EXPECT_NE(refused.message().find("no step can be recovered"), std::string::npos) << refused.message();
  EXPECT_EQ(refused.remedy(), "put back a copy of the store's files, or make a new store with --force");
}

INSTANTIATE_TEST_SUITE_P(Drives, StoreMirrors, testing::Values(2, 3));

}  // namespace
}  // namespace penstock::aio
