#include "tiering/store/slot_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace penstock {
namespace {

SlotTable table_of(uint32_t tiles, uint32_t slots) { return SlotTable(std::vector<uint8_t>(tiles, 0), slots); }

void write_and_land(SlotTable& table, TileId tile, NewVersion version) {
  std::optional<uint32_t> slot = table.try_begin_write(tile, version);
  ASSERT_TRUE(slot);
  table.end_write({tile, *slot});
}

TEST(SlotTable, KeepsTheDurableSlotUntilTheNextRootIsDurable) {
  SlotTable table = table_of(1, 2);
  write_and_land(table, 0, NewVersion::final);
  EXPECT_EQ(table.current(0), 1u);
  table.seal();
  EXPECT_FALSE(table.try_begin_write(0, NewVersion::final)) << "slot 0 is durable, slot 1 is in the root under way";
  table.make_durable();
  EXPECT_EQ(table.try_begin_write(0, NewVersion::final), 0u);
}

TEST(SlotTable, ReturnsToTheOldVersionOnDiscard) {
  SlotTable table = table_of(1, 2);
  write_and_land(table, 0, NewVersion::unconfirmed);
  EXPECT_EQ(table.current(0), 0u);
  table.discard();
  EXPECT_EQ(table.current(0), 0u);
  EXPECT_TRUE(table.is_free(0, 1, NewVersion::unconfirmed)) << "a discard frees the slot at once";
}

TEST(SlotTable, FreesADiscardedSlotOnlyWhenItsWriteHasEnded) {
  SlotTable table = table_of(1, 2);
  ASSERT_EQ(table.try_begin_write(0, NewVersion::unconfirmed), 1u);
  table.discard();
  EXPECT_FALSE(table.try_begin_write(0, NewVersion::final));
  table.end_write({0, 1});
  EXPECT_TRUE(table.try_begin_write(0, NewVersion::final));
}

TEST(SlotTable, KeepsASlotThatIsBeingRead) {
  SlotTable table = table_of(1, 2);
  ASSERT_EQ(table.try_begin_read(0), 0u);
  write_and_land(table, 0, NewVersion::final);
  table.seal();
  table.make_durable();
  EXPECT_FALSE(table.try_begin_write(0, NewVersion::final)) << "the old version is still being read";
  table.end_read({0, 0});
  EXPECT_TRUE(table.try_begin_write(0, NewVersion::final));
}

TEST(SlotTable, OffersNoReadOfAVersionThatHasNotLanded) {
  SlotTable table = table_of(1, 2);
  ASSERT_EQ(table.try_begin_write(0, NewVersion::final), 1u);
  EXPECT_FALSE(table.try_begin_read(0));
  table.end_write({0, 1});
  EXPECT_EQ(table.try_begin_read(0), 1u);
}

TEST(SlotTable, SealsWhatIsCurrentAndNotWhatIsUnconfirmed) {
  SlotTable table = table_of(2, 3);
  write_and_land(table, 0, NewVersion::unconfirmed);
  table.confirm();
  write_and_land(table, 1, NewVersion::unconfirmed);
  table.seal();
  EXPECT_EQ(table.sealed(0), 1u);
  EXPECT_EQ(table.sealed(1), 0u);
}

TEST(SlotTable, CountsWhatTheRootUnderWayWaitsFor) {
  SlotTable table = table_of(2, 3);
  ASSERT_TRUE(table.try_begin_write(0, NewVersion::final));
  ASSERT_TRUE(table.try_begin_write(1, NewVersion::unconfirmed));
  table.seal();
  EXPECT_EQ(table.landing(), 1u) << "the unconfirmed write is not the root's";
  ASSERT_EQ(table.try_begin_write(0, NewVersion::unconfirmed), 2u) << "the next step's";
  table.end_write({0, 2});
  EXPECT_EQ(table.landing(), 1u);
  table.end_write({0, 1});
  EXPECT_EQ(table.landing(), 0u);
}

// Two slots and rare commits: a version that no root will ever name may be overwritten, but not by a guess.
TEST(SlotTable, LetsAFinalUpdateReplaceAVersionThatWasNeverDurable) {
  SlotTable table = table_of(1, 2);
  write_and_land(table, 0, NewVersion::final);
  EXPECT_FALSE(table.is_free(0, 1, NewVersion::unconfirmed));
  EXPECT_TRUE(table.is_free(0, 1, NewVersion::final));
  EXPECT_FALSE(table.is_free(0, 0, NewVersion::final));
}

TEST(SlotTable, OverwritesASingleSlotOnlyWhileTheRootSaysSo) {
  SlotTable table = table_of(1, 1);
  EXPECT_FALSE(table.try_begin_write(0, NewVersion::final));
  table.allow_in_place(true);
  write_and_land(table, 0, NewVersion::final);
  table.seal();
  EXPECT_FALSE(table.try_begin_write(0, NewVersion::final)) << "the root under way names it";
}

// The rule, kept by a second account of who names what, over random runs of everything that can happen.
class Ledger {
 public:
  Ledger(uint32_t tiles, uint32_t slots, uint64_t seed)
      : table_(std::vector<uint8_t>(tiles, 0), slots), durable_(tiles, 0), current_(tiles, 0), random_(seed) {}

  void act() {
    TileId tile = static_cast<TileId>(random_() % durable_.size());
    switch (random_() % 9) {
      case 0:
      case 1:
        return begin_write(tile);
      case 2:
      case 3:
        return end_some_write();
      case 4:
        if (std::optional<uint32_t> slot = table_.try_begin_read(tile)) {
          ASSERT_EQ(*slot, current_[tile]);
          reads_.insert({tile, *slot});
        }
        return;
      case 5:
        if (reads_.empty()) return;
        table_.end_read({reads_.begin()->first, reads_.begin()->second});
        reads_.erase(reads_.begin());
        return;
      case 6:
        for (auto [t, slot] : unconfirmed_) current_[t] = slot;
        unconfirmed_.clear();
        return table_.confirm();
      case 7:
        unconfirmed_.clear();
        return table_.discard();
      default:
        return commit();
    }
  }

 private:
  using Place = std::pair<TileId, uint32_t>;

  void begin_write(TileId tile) {
    if (unconfirmed_.contains(tile)) return;
    NewVersion version = random_() % 2 ? NewVersion::final : NewVersion::unconfirmed;
    std::optional<uint32_t> slot = table_.try_begin_write(tile, version);
    if (!slot) return;
    ASSERT_NE(*slot, durable_[tile]) << "a durable root names it";
    if (sealed_) {
      ASSERT_NE(*slot, (*sealed_)[tile]) << "the root under way names it";
    }
    if (version == NewVersion::unconfirmed) {
      ASSERT_NE(*slot, current_[tile]) << "a discard returns to it";
    }
    ASSERT_FALSE(writes_.contains({tile, *slot})) << "a write in flight names it";
    ASSERT_FALSE(reads_.contains({tile, *slot})) << "a read in flight names it";
    writes_.insert({tile, *slot});
    if (version == NewVersion::final) {
      current_[tile] = *slot;
    } else {
      unconfirmed_[tile] = *slot;
    }
  }

  void end_some_write() {
    if (writes_.empty()) return;
    auto place = std::next(writes_.begin(), static_cast<ptrdiff_t>(random_() % writes_.size()));
    table_.end_write({place->first, place->second});
    writes_.erase(place);
  }

  void commit() {
    if (!sealed_) {
      sealed_ = current_;
      return table_.seal();
    }
    uint32_t landing = 0;
    for (TileId tile = 0; tile < durable_.size(); ++tile) landing += writes_.contains({tile, (*sealed_)[tile]});
    ASSERT_EQ(table_.landing(), landing);
    if (landing > 0) return;
    durable_ = *sealed_;
    sealed_.reset();
    table_.make_durable();
  }

  SlotTable table_;
  std::vector<uint32_t> durable_, current_;
  std::optional<std::vector<uint32_t>> sealed_;
  std::map<TileId, uint32_t> unconfirmed_;
  std::set<Place> writes_;
  std::multiset<Place> reads_;
  std::mt19937_64 random_;
};

TEST(SlotTable, NeverHandsOutANamedSlot) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Ledger ledger(1 + seed % 5, 2 + seed % 3, seed);
    for (int i = 0; i < 2000 && !testing::Test::HasFatalFailure(); ++i) ledger.act();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace penstock
