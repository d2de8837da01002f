// Drives that do not keep what was written: a named error or a recovery from a mirror, never a silent continuation.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "tests/aio/store/store_media.h"
#include "tests/support/scripted_backend.h"

namespace penstock::aio {
namespace {

TEST_P(StoreMedia, SaysWhichStepsAreLost) {
  // Of a root that rotted the pages still tell which step it was.
  for (uint32_t drive = 0; drive < drives(); ++drive) rot_root(drive, sequence_of(kSteps));
  EXPECT_EQ(expect_goes_on(), kSteps - 1);
  EXPECT_TRUE(noted("step 4 is lost, the store is at step 3: /drive0/rank0.tiles: root")) << notes();
  // An older root in its place looks like a crash just before it was written.
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    world_.put_image(images_[kSteps]);
  }
  const uint64_t place = StoreLayout::root_offset(sequence_of(kSteps) % 2);
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    std::memcpy(&world_.bytes(drive)[place], &images_[kSteps - 2][drive][place], kRecordBytes);
  }
  EXPECT_EQ(expect_goes_on(), kSteps - 1);
  EXPECT_TRUE(
      noted("step 4 is lost, the store is at step 3: it was not yet durable when the last run ended, or its "
            "root was lost since"))
      << notes();
}

TEST_P(StoreMedia, SaysWhichStepsAreLostWhereFewOfThemWereMadeDurable) {
  {
    Result<std::unique_ptr<TileStore>> store = world_.open();
    StoreTrainer trainer(world_.engine(), **store);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(trainer.step(4).ok());  // roots 6 and 7 of steps 8 and 12
    ASSERT_TRUE(trainer.settle().ok());
  }
  for (uint32_t drive = 0; drive < drives(); ++drive) rot_root(drive, 7);
  EXPECT_EQ(expect_goes_on(), 8u);
  EXPECT_TRUE(noted("steps 9 to 12 are lost, the store is at step 8: ")) << notes();
}

TEST_P(StoreMedia, NamesADamagedHeaderOnce) {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    world_.put_image(images_[kSteps]);
    rot(0, StoreLayout::header_offset(copy) + 50);
    EXPECT_EQ(expect_goes_on(), kSteps);
    EXPECT_EQ(notes(), text("/drive0/rank0.tiles: store header ", copy, ": damaged or old; another copy is good\n"));
  }
}

TEST_P(StoreMedia, RestoresAShapeFromItsOtherCopyOrFromTheModel) {
  const std::vector<std::byte> encoded = shape_.encode();
  const auto place = [&](uint32_t copy) { return StoreLayout::shape_offset(copy, encoded.size()) + 70; };
  for (uint32_t copy = 0; copy < 2; ++copy) {
    world_.put_image(images_[kSteps]);
    for (uint32_t drive = 0; drive < drives(); ++drive) rot(drive, place(copy));
    EXPECT_EQ(expect_goes_on(), kSteps);
    EXPECT_EQ(notes_.size(), drives());
    EXPECT_TRUE(noted(text("/drive0/rank0.tiles: store description ", copy, ": damaged"))) << notes();
  }
  world_.put_image(images_[kSteps]);
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    for (uint32_t copy = 0; copy < 2; ++copy) rot(drive, place(copy));
  }
  EXPECT_EQ(world_.open().status().message(),
            text("/drive0/rank0.tiles: the description of what is stored is damaged, at ", place(0) - 70, " and at ",
                 place(1) - 70));
}

TEST_P(StoreMedia, ScrubTellsWhatCouldNotBeReadFromWhatDiffers) {
  const StoreLayout::FileRange unread = place_of(5, slot_of(5)), rotten = place_of(2, slot_of(2));
  rot(rotten.drive, rotten.file_offset_bytes);
  QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [&](const Piece& piece) {
    const bool hit = piece.file->drive() == unread.drive && piece.offset_bytes <= unread.file_offset_bytes &&
                     unread.file_offset_bytes < piece.offset_bytes + piece.length_bytes;
    return hit && piece.operation == Operation::read ? EIO : ScriptedBackend::kPass;
  }));
  const ScrubReport report = *(*world_.open_with(engine))->scrub(world_.memory());
  ASSERT_EQ(report.bad.size(), 2u);
  EXPECT_EQ(report.unread(), 1u);
  for (const BadBlock& bad : report.bad) {
    EXPECT_EQ(bad.tile, bad.unread.ok() ? 2u : 5u);
    EXPECT_EQ(bad.unread.message().find("EIO") != std::string::npos, bad.tile == 5) << bad.unread.message();
  }
}

TEST(StoreScrub, ReadsTheOtherBlocksOfAChunkThatTheDriveRefuses) {
  const StoreShape shape = small_shape(1, 3 * kBlockElements, 3 * kBlockElements);
  StoreWorld world(1);
  ASSERT_TRUE(world.create(shape).ok());
  const uint64_t block_bytes = shape.layout(0).places[0].plane.bytes(kBlockElements);
  const uint64_t unread =
      StoreLayout(shape, 2, {kShareWhole}).file_ranges(0, 0, block_bytes, 4096).front().file_offset_bytes;
  QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [&](const Piece& piece) {
    const bool hit = piece.offset_bytes <= unread && unread < piece.offset_bytes + piece.length_bytes;
    return hit && piece.operation == Operation::read ? EIO : ScriptedBackend::kPass;
  }));
  const ScrubReport report = *(*world.open_with(engine))->scrub(world.memory());
  ASSERT_EQ(report.bad.size(), 1u);
  EXPECT_EQ(report.bad[0].offset_bytes, unread);
  EXPECT_NE(report.bad[0].unread.message().find("EIO"), std::string::npos) << report.bad[0].unread.message();
}

TEST_P(StoreMedia, AChecksumMismatchNamesTensorFileAndOffset) {
  Result<std::unique_ptr<TileStore>> store = world_.open();
  const TileSlot slot{5, slot_of(5)};
  const StoreLayout::FileRange place = place_of(5, slot.slot);
  const Status mismatch = (*store)->checksum_mismatch(slot, 0);
  EXPECT_EQ(mismatch.code(), Code::kCorrupt);
  EXPECT_EQ(mismatch.message(), text("6000 B at ", place.file_offset_bytes, " of /drive", place.drive,
                                     "/rank0.tiles fail the checksum they were written with: "
                                     "h.5.attention[0..1500), h.5.mlp[0..1500) weight"));
  EXPECT_NE(mismatch.remedy().find("penstock checkpoint scrub"), std::string::npos);
}

TEST_P(StoreMedia, AReadThatFailsNamesTheTileAndItsTensors) {
  Result<std::unique_ptr<TileStore>> store = world_.open();
  const TileSlot slot{5, slot_of(5)};
  EXPECT_EQ((*store)->read_status(slot, errno_status("read 4096 B at 0 of a", EIO)).message(),
            "tile 5 (h.5.attention to h.5.mlp): read 4096 B at 0 of a: EIO (Input/output error)");
  EXPECT_TRUE((*store)->read_status(slot, Status()).ok());
}

// The slots of the step before may have been written since; every block is looked at before that step is believed.
TEST_P(StoreMedia, BelievesAnOlderRootOnlyAfterVerifyingEveryBlock) {
  for (uint32_t drive = 0; drive < drives(); ++drive) rot_root(drive, sequence_of(kSteps));
  EXPECT_EQ(expect_goes_on(), kSteps - 1);
  ASSERT_FALSE(notes_.empty());
  EXPECT_NE(notes_[0].find("every block of step 3 was verified"), std::string::npos) << notes_[0];
}

TEST_P(StoreMedia, CanBeStoppedWhileItVerifiesEveryBlock) {
  for (uint32_t drive = 0; drive < drives(); ++drive) rot_root(drive, sequence_of(kSteps));
  int told = 0;
  OpenOptions options;
  options.verifying = [&](double) { return ++told == 3 ? Status(Code::kInterrupted, "enough") : Status(); };
  const Status stopped = world_.open(options).status();
  EXPECT_EQ(stopped.code(), Code::kInterrupted);
  EXPECT_EQ(stopped.message(), "enough");
  EXPECT_EQ(told, 3);
  EXPECT_EQ(expect_goes_on(), kSteps - 1);
}

// A root that was not read is not a root that rotted: the next try may find it.
TEST_P(StoreMedia, BelievesNoOlderRootWhileTheNewestCannotBeRead) {
  auto on_all_drives = [&](const Piece& piece) {
    const bool newest = piece.offset_bytes == StoreLayout::root_offset(sequence_of(kSteps) % 2);
    return piece.operation == Operation::read && newest ? EIO : ScriptedBackend::kPass;
  };
  {
    QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), on_all_drives));
    Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
    ASSERT_FALSE(store.ok()) << "at step " << (*store)->payload().step;
    EXPECT_EQ(store.status().code(), Code::kEnvironment);
    EXPECT_NE(store.status().message().find("read 4096 B at 69632 of /drive0/rank0.tiles: EIO"), std::string::npos)
        << store.status().message();
  }
  // Nor while its table pages may be there, unread.
  for (uint32_t drive = 1; drive < drives(); ++drive) rot(drive, layout().page_offset(0, page_slot()) + 70);
  {
    const std::vector<MemoryFile::Bytes> rotten = world_.image();
    QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [&](const Piece& piece) {
      const bool pages = piece.offset_bytes == layout().page_offset(0, 0) && piece.file->drive() == 0;
      return piece.operation == Operation::read && pages ? EIO : ScriptedBackend::kPass;
    }));
    Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
    ASSERT_FALSE(store.ok()) << "at step " << (*store)->payload().step;
    EXPECT_EQ(store.status().code(), Code::kEnvironment);
    EXPECT_NE(store.status().message().find("of /drive0/rank0.tiles: EIO"), std::string::npos)
        << store.status().message();
    EXPECT_TRUE(world_.image() == rotten);
    world_.put_image(images_[kSteps]);
  }
  EXPECT_TRUE(world_.image() == images_[kSteps]);
  if (drives() > 1) {
    auto on_one_drive = [&](const Piece& piece) {
      return piece.file->drive() == 1 ? on_all_drives(piece) : ScriptedBackend::kPass;
    };
    QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), on_one_drive));
    Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_EQ((*store)->payload().step, kSteps);
  }
  EXPECT_EQ(expect_goes_on(), kSteps);
}

TEST_P(StoreMedia, RefusesAnOlderRootWhoseSlotsHaveBeenReused) {
  // The first tile of step 5 has landed where step 3's lay, and step 4's root rots.
  StoreLayout::FileRange place = place_of(6, 1 - slot_of(6));
  rot(place.drive, place.file_offset_bytes);
  EXPECT_EQ(expect_opens_at(), kSteps);
  for (uint32_t drive = 0; drive < drives(); ++drive) rot_root(drive, sequence_of(kSteps));
  EXPECT_NE(refusal().find("step 3: 1 of 49 blocks are not what was written"), std::string::npos) << refusal();
}

TEST_P(StoreMedia, RefusesAStoreWithoutAnyRoot) {
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    for (uint64_t sequence : {1, 2}) rot_root(drive, sequence);
  }
  EXPECT_NE(refusal().find("no root can be read on any drive"), std::string::npos);
}

TEST_P(StoreMedia, NamesAFlippedBitOfAWeight) {
  StoreLayout::FileRange place = place_of(5, slot_of(5));
  rot(place.drive, place.file_offset_bytes + 1234);
  EXPECT_EQ(refusal(), "tile 5: a block is not what was written");
  Result<std::unique_ptr<TileStore>> store = world_.open();
  ScrubReport report = *(*store)->scrub(world_.memory());
  ASSERT_EQ(report.bad.size(), 1u);
  EXPECT_EQ(report.bad[0].file, "/drive" + std::to_string(place.drive) + "/rank0.tiles");
  EXPECT_EQ(report.bad[0].offset_bytes, place.file_offset_bytes);
  EXPECT_EQ(report.bad[0].tensor, "h.5.attention[0..1500), h.5.mlp[0..1500) weight");
}

TEST_P(StoreMedia, NamesATileWhoseOldBytesCameBack) {
  const uint32_t slot = slot_of(3);
  for (const StoreLayout::FileRange& piece : layout().file_ranges(3, slot, 0, layout().tile_bytes(3))) {
    std::memcpy(world_.bytes(piece.drive).data() + piece.file_offset_bytes,
                images_[kSteps - 2][piece.drive].data() + piece.file_offset_bytes, piece.length_bytes);
  }
  EXPECT_EQ(refusal(), "tile 3: a block is not what was written");
}

TEST_P(StoreMedia, NamesTilesThatWereSwapped) {
  StoreLayout::FileRange a = place_of(2, slot_of(2)), b = place_of(7, slot_of(7));
  ASSERT_EQ(a.length_bytes, b.length_bytes);
  std::swap_ranges(world_.bytes(a.drive).begin() + static_cast<ptrdiff_t>(a.file_offset_bytes),
                   world_.bytes(a.drive).begin() + static_cast<ptrdiff_t>(a.file_offset_bytes + a.length_bytes),
                   world_.bytes(b.drive).begin() + static_cast<ptrdiff_t>(b.file_offset_bytes));
  EXPECT_NE(refusal().find("a block is not what was written"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Drives, StoreMedia, testing::Values(1, 3));

}  // namespace
}  // namespace penstock::aio
