// Drives that do not keep what was written: a named error or a recovery from a mirror, never a silent continuation.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <regex>

#include "tests/support/instrumented.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/store_world.h"
#include "tiering/store/root_record.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kSteps = 4;

class StoreMedia : public testing::TestWithParam<uint32_t> {
 protected:
  StoreMedia() : shape_(small_shape(12, 3000, kBlockElements)), world_(GetParam()) {
    CHECK(world_.create(shape_).ok());
    images_.push_back(world_.image());
    for (uint64_t step = 1; step <= kSteps; ++step) {
      Result<std::unique_ptr<TileStore>> store = world_.open();
      StoreTrainer trainer(world_.engine(), **store);
      CHECK(trainer.step().ok() && trainer.settle().ok());
      images_.push_back(world_.image());
    }
  }

  uint32_t drives() const { return GetParam(); }
  void rot(uint32_t drive, uint64_t offset_bytes) { world_.bytes(drive)[offset_bytes] ^= std::byte{16}; }
  void rot_root(uint32_t drive, uint64_t sequence) { rot(drive, StoreLayout::root_offset(sequence % 2) + 99); }
  // The first root has number 1 and step 0.
  static uint64_t sequence_of(uint64_t step) { return step + 1; }

  // Opens, goes on for two steps and expects the plain loop's bits; returns the step it began from.
  uint64_t expect_goes_on() {
    Result<std::unique_ptr<TileStore>> store = world_.open();
    EXPECT_TRUE(store.ok()) << store.status().message();
    if (!store.ok()) return 0;
    notes_ = (*store)->open_report().notes;
    uint64_t step = (*store)->payload().step;
    StoreTrainer trainer(world_.engine(), **store);
    EXPECT_EQ(difference(trainer, shape_, step), "");
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(trainer.step().ok());
    EXPECT_TRUE(trainer.settle().ok());
    EXPECT_EQ(difference(trainer, shape_, step + 2), "");
    return step;
  }

  bool noted(const std::string& words) const {
    return std::any_of(notes_.begin(), notes_.end(),
                       [&](const std::string& note) { return note.find(words) != std::string::npos; });
  }
  std::string notes() const {
    std::string all;
    for (const std::string& note : notes_) all += note + "\n";
    return all;
  }

  uint64_t expect_opens_at() {
    Result<std::unique_ptr<TileStore>> store = world_.open();
    return store.ok() ? (*store)->payload().step : ~uint64_t{0};
  }

  // Opening or the next step names what is wrong.
  std::string refusal() {
    Result<std::unique_ptr<TileStore>> store = world_.open();
    if (!store.ok()) return store.status().message();
    StoreTrainer trainer(world_.engine(), **store);
    return trainer.step().message();
  }

  StoreLayout layout() const { return StoreLayout(shape_, 2, shares_of({}, drives())); }
  StoreLayout::FileRange place_of(TileId tile, uint32_t slot) const {
    return layout().file_ranges(tile, slot, 0, 4096).front();
  }
  static constexpr uint32_t page_slot() { return kSteps % 2; }  // of the newest root's only page
  uint32_t slot_of(TileId tile) {
    Result<std::unique_ptr<TileStore>> store = world_.open({.purpose = OpenOptions::Purpose::inspect});
    TileStore::Reading reading = *(*store)->begin_read(tile);
    (*store)->end_read(reading.place);
    return reading.place.slot;
  }

  // One of the two newest roots, a header, the shape, a table page, or a block that one of those roots names.
  struct Place {
    uint32_t drive;
    uint64_t offset_bytes, length_bytes;
  };
  Place place_of_something(std::mt19937_64& random) const {
    const uint32_t drive = static_cast<uint32_t>(random() % drives());
    const uint64_t copy = random() % 2;
    switch (random() % 8) {
      case 0:
        return {drive, StoreLayout::header_offset(static_cast<uint32_t>(copy)), kRecordBytes};
      case 1:
        return {drive, StoreLayout::shape_offset(), 4096};
      case 2:
      case 3:
        return {drive, layout().page_offset(0, static_cast<uint32_t>(copy)), layout().table().page_bytes()};
      case 4:
      case 5: {
        const StoreLayout::FileRange piece = place_of(static_cast<TileId>(random() % 12), static_cast<uint32_t>(copy));
        return {piece.drive, piece.file_offset_bytes, 4096};
      }
      default:
        return {drive, StoreLayout::root_offset(copy), kRecordBytes};
    }
  }

  // Does as the remedy says for drives that can never be read again: `dd` over roots, each of which can then be read
  // again. Every such try ends otherwise than the one before. Whether there was one.
  bool expect_a_way_out(QueuedIoEngine& engine, Status why, std::vector<Place>& unread) {
    const std::regex command("dd if=/dev/zero of=/drive([0-9])/rank0.tiles bs=4096 count=1 seek=([0-9]+) conv=notrunc");
    for (int tries = 0;; ++tries) {
      const std::string remedy = why.remedy();
      const std::sregex_iterator first(remedy.begin(), remedy.end(), command), end;
      if (first == end) return tries > 0;
      for (std::sregex_iterator each = first; each != end; ++each) {
        const uint32_t drive = static_cast<uint32_t>(std::stoul((*each)[1]));
        const uint64_t offset = std::stoull((*each)[2]) * 4096;
        EXPECT_TRUE(offset == StoreLayout::root_offset(0) || offset == StoreLayout::root_offset(1)) << remedy;
        std::fill_n(world_.bytes(drive).begin() + static_cast<ptrdiff_t>(offset), 4096, std::byte{0});
        std::erase_if(unread, [&](const Place& at) { return at.drive == drive && at.offset_bytes == offset; });
      }
      Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
      if (store.ok()) {
        EXPECT_FALSE((*store)->open_report().notes.empty());
        return true;
      }
      EXPECT_NE(store.status().message(), why.message()) << "and again, after " << remedy;
      if (HasFailure()) return true;
      why = store.status();
    }
  }

  StoreShape shape_;
  StoreWorld world_;
  std::vector<std::vector<MemoryFile::Bytes>> images_;  // by step
  std::vector<std::string> notes_;
};

// What only several drives have.
class StoreMirrors : public StoreMedia {};

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

TEST_P(StoreMedia, AChecksumMismatchNamesTensorFileAndOffset) {
  Result<std::unique_ptr<TileStore>> store = world_.open();
  const TileSlot slot{5, slot_of(5)};
  const StoreLayout::FileRange place = place_of(5, slot.slot);
  const Status mismatch = (*store)->checksum_mismatch(slot, 0);
  EXPECT_EQ(mismatch.code(), Code::kCorrupt);
  EXPECT_EQ(mismatch.message(),
            text("h.5.attention[0..1500), h.5.mlp[0..1500) weight: 6000 B at ", place.file_offset_bytes, " of /drive",
                 place.drive, "/rank0.tiles fail the checksum they were written with"));
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

TEST_P(StoreMirrors, NoticesADriveThatWentBackInTime) {
  world_.folder(1).put(StoreWorld::kFile, images_[kSteps - 3][1]);
  EXPECT_NE(refusal().find("no step can be recovered"), std::string::npos) << refusal();
}

// Any one accident to any one place of any one drive: a flipped bit, zeros, or what lay there before. Where the newest
// step cannot be gone on from, the one before it can.
TEST_P(StoreMedia, NeverGoesOnSilentlyAfterAnyDamage) {
  uint64_t refused = 0, recovered = 0;
  for (uint64_t seed = 1; seed <= test::fewer(1000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    world_.put_image(images_[kSteps]);
    const uint32_t drive = static_cast<uint32_t>(random() % drives());
    MemoryFile::Bytes& bytes = world_.bytes(drive);
    // Half of the accidents hit what the store says about itself.
    const uint64_t sector = random() % (random() % 2 ? bytes.size() / 4096 : 48);
    const uint64_t accident = random() % 3;
    if (accident == 0) bytes[sector * 4096 + random() % 4096] ^= std::byte{1} << (random() % 8);
    if (accident == 1) std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(sector * 4096), 4096, std::byte{0});
    if (accident == 2) {
      const MemoryFile::Bytes& old = images_[random() % kSteps][drive];
      std::memcpy(&bytes[sector * 4096], &old[sector * 4096], 4096);
    }
    const std::vector<MemoryFile::Bytes> damaged = world_.image();
    Result<std::unique_ptr<TileStore>> store = world_.open();
    if (!store.ok()) {
      ++refused;
      continue;
    }
    const uint64_t step = (*store)->payload().step;
    StoreTrainer trainer(world_.engine(), **store);
    Status ran;
    for (int i = 0; i < 2 && ran.ok(); ++i) ran = trainer.step();
    if (ran.ok()) ran = trainer.settle();
    if (!ran.ok()) {
      EXPECT_EQ(ran.code(), Code::kCorrupt);
      ++refused;
      if (step < kSteps) continue;
      world_.put_image(damaged);
      Result<std::unique_ptr<TileStore>> before = world_.open(OpenOptions{.newest_step = kSteps - 1});
      ASSERT_TRUE(before.ok()) << before.status().message();
      ASSERT_EQ((*before)->payload().step, kSteps - 1);
      StoreTrainer from_before(world_.engine(), **before);
      ASSERT_EQ(difference(from_before, shape_, kSteps - 1), "");
      continue;
    }
    ++recovered;
    const std::string differs = difference(trainer, shape_, step + 2);
    // No step reads the last tile, which is frozen; whoever does is told.
    ASSERT_TRUE(differs.empty() || differs == "tile 12: a block is not what was written") << differs;
    ASSERT_TRUE(step == kSteps || !(*store)->open_report().notes.empty()) << "an older step without a word";
  }
  EXPECT_GT(refused, test::fewer(5));
  EXPECT_GT(recovered, test::fewer(50));
}

// Two or three accidents at once, some of them to drives that refuse to read and may be back at the next try: no step
// is believed then that would not be believed if they had answered, since what is written next is gone for good.
TEST_P(StoreMedia, BelievesNoOlderStepBecauseOfWhatCannotBeReadNow) {
  uint64_t refused = 0, opened = 0, went_back = 0, gave_up = 0;
  for (uint64_t seed = 1; seed <= test::fewer(1000); ++seed) {
    std::mt19937_64 random(seed);
    world_.put_image(images_[kSteps]);
    std::vector<Place> unread;
    std::string accidents;
    for (uint64_t count = 2 + random() % 2; count > 0; --count) {
      const Place at = place_of_something(random);
      const uint64_t how = random() % 3;
      accidents += text(" ",
                        how == 0   ? "rotten"
                        : how == 1 ? "unread"
                                   : "old",
                        " at ", at.offset_bytes, " of drive ", at.drive, ";");
      if (how == 0) rot(at.drive, at.offset_bytes + 70);
      if (how == 1) unread.push_back(at);
      if (how == 2) {
        std::memcpy(&world_.bytes(at.drive)[at.offset_bytes], &images_[random() % kSteps][at.drive][at.offset_bytes],
                    at.length_bytes);
      }
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ":" << accidents);
    const std::vector<MemoryFile::Bytes> damaged = world_.image();
    std::optional<uint64_t> answering;  // the step that is believed when every drive answers, if it is whole
    if (Result<std::unique_ptr<TileStore>> store = world_.open(); store.ok()) {
      StoreTrainer trainer(world_.engine(), **store);
      const uint64_t step = (*store)->payload().step;
      if (difference(trainer, shape_, step).empty()) answering = step;
    }
    world_.put_image(damaged);

    QueuedIoEngine refusing(
        std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [&](const Piece& piece) {
          const bool hit = std::any_of(unread.begin(), unread.end(), [&](const Place& at) {
            return piece.file->drive() == at.drive && piece.offset_bytes < at.offset_bytes + at.length_bytes &&
                   at.offset_bytes < piece.offset_bytes + piece.length_bytes;
          });
          return hit && piece.operation == Operation::read ? EIO : ScriptedBackend::kPass;
        }));
    uint64_t step = 0;
    {
      Result<std::unique_ptr<TileStore>> store = world_.open_with(refusing);
      if (!store.ok()) {
        ++refused;
        EXPECT_TRUE(world_.image() == damaged) << "a refused opening has written";
        EXPECT_TRUE(!answering || store.status().code() == Code::kEnvironment) << store.status().message();
        EXPECT_NE(store.status().message().find("/rank0.tiles"), std::string::npos) << store.status().message();
        EXPECT_FALSE(store.status().remedy().empty()) << store.status().message();
        if (HasFailure()) return;
        gave_up += expect_a_way_out(refusing, store.status(), unread);
        if (HasFailure()) return;
        continue;
      }
      step = (*store)->payload().step;
      ASSERT_GE(step, answering.value_or(0));
    }
    // What it has set right stays so; what was not looked at is found out by its checksum.
    Result<std::unique_ptr<TileStore>> store = world_.open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    ASSERT_EQ((*store)->payload().step, step);
    ++opened;
    went_back += step < kSteps;
    StoreTrainer trainer(world_.engine(), **store);
    const std::string differs = difference(trainer, shape_, step);
    ASSERT_TRUE(differs.empty() || differs.find("not what was written") != std::string::npos) << differs;
  }
  if (test::kStride > 1) return;  // too few to have met all
  EXPECT_GT(refused, 10u);
  EXPECT_GT(opened, 100u);
  EXPECT_GT(went_back, 5u);
  EXPECT_GT(gave_up, 5u);
}

INSTANTIATE_TEST_SUITE_P(Drives, StoreMedia, testing::Values(1, 3));
INSTANTIATE_TEST_SUITE_P(Drives, StoreMirrors, testing::Values(2, 3));

}  // namespace
}  // namespace penstock::aio
