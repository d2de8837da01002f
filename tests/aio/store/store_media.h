// Stores on one drive and on several, that tests damage between two openings.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/store_world.h"
#include "tiering/store/store_record.h"

namespace penstock::aio {

class StoreMedia : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint64_t kSteps = 4;

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

}  // namespace penstock::aio
