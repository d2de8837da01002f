// Accidents drawn at random, to any place of any drive: none of them is gone on from silently.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "tests/aio/store/store_media.h"
#include "tests/support/instrumented.h"
#include "tests/support/scripted_backend.h"

namespace penstock::aio {
namespace {

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

TEST_P(StoreMedia, FindsNoStepAgainThatWasGivenUpForOneThatAllRanksHave) {
  ASSERT_TRUE(world_.open(OpenOptions{.newest_step = kSteps - 1}).ok());
  EXPECT_EQ(expect_goes_on(), kSteps - 1);
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

}  // namespace
}  // namespace penstock::aio
