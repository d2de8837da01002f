#include "tiering/plan/move_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/instrumented.h"

namespace penstock {
namespace {

// Sizes around those where a word, or a level of words, is full.
TEST(MoveSet, HoldsWhatAnOrderedSetHolds) {
  for (const size_t count : {1, 2, 63, 64, 65, 4095, 4096, 4097, 262144, 262145}) {
    const uint64_t seed = 18 + count;
    SCOPED_TRACE(testing::Message() << count << " moves, seed " << seed);
    std::mt19937_64 random(seed);
    MoveSet set(count);
    std::set<MoveId> expected;
    EXPECT_TRUE(set.empty());
    for (uint64_t i = 0; i < test::fewer(4000); ++i) {
      // Close together or far apart, few or many.
      const auto id =
          static_cast<MoveId>(random() % 3 == 0 ? random() % std::min<size_t>(count, 200) : random() % count);
      if (random() % 5 < 3) {
        set.insert(id);
        expected.insert(id);
      } else {
        const MoveId gone = expected.empty() || random() % 4 == 0 ? id : *expected.begin();
        set.erase(gone);
        expected.erase(gone);
      }
      ASSERT_EQ(set.empty(), expected.empty());
      ASSERT_EQ(set.first(), expected.empty() ? kNoMove : *expected.begin());
      ASSERT_EQ(set.contains(id), expected.contains(id));
      const auto after = expected.upper_bound(id);
      ASSERT_EQ(set.after(id), after == expected.end() ? kNoMove : *after);
    }
    size_t visited = 0;
    for (MoveId id = set.first(); id != kNoMove; id = set.after(id)) visited += expected.contains(id) ? 1 : count;
    EXPECT_EQ(visited, expected.size());
    for (MoveId id : expected) set.erase(id);
    EXPECT_TRUE(set.empty());
  }
}

TEST(MoveSet, OfNoPlanHoldsNothing) {
  MoveSet set;
  EXPECT_FALSE(set.is_made());
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.first(), kNoMove);
  EXPECT_FALSE(set.contains(0));
  EXPECT_FALSE(MoveSet(64).contains(kNoMove));
}

}  // namespace
}  // namespace penstock
