#include "tiering/buffer.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(BufferPool, LendsEachPieceOnceAndTakesItBack) {
  Buffer memory = Buffer::on_heap(3 * 4096);
  BufferPool pool(Tier::host, memory.bytes(), 4096);
  ASSERT_EQ(pool.pieces(), 3u);
  std::optional<Lease> a = pool.try_lease(), b = pool.try_lease(), c = pool.try_lease();
  ASSERT_TRUE(a && b && c);
  EXPECT_NE(a->data(), b->data());
  EXPECT_NE(b->data(), c->data());
  EXPECT_FALSE(pool.try_lease());
  std::byte* place = b->data();
  b.reset();
  std::optional<Lease> again = pool.try_lease();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data(), place);
}

TEST(BufferPool, CountsAPieceOnceAfterItsLeaseWasMoved) {
  Buffer memory = Buffer::on_heap(2 * 4096);
  BufferPool pool(Tier::host, memory.bytes(), 4096);
  {
    Lease a = *pool.try_lease();
    Lease b = std::move(a);
    EXPECT_FALSE(a);
    a = std::move(b);
    a = *pool.try_lease();  // the first piece goes back
    EXPECT_EQ(pool.pieces_free(), 1u);
  }
  EXPECT_EQ(pool.pieces_free(), 2u);
}

TEST(BufferPoolDeathTest, RefusesToDieBeforeItsLeases) {
  Buffer memory = Buffer::on_heap(4096);
  EXPECT_DEATH(
      {
        Lease late;
        BufferPool pool(Tier::host, memory.bytes(), 4096);
        late = *pool.try_lease();
      },
      "1 leases outlive their pool");
}

TEST(Buffer, ReleasesOnceWhenMoved) {
  int released = 0;
  std::byte place[16];
  {
    Buffer a(Tier::host, place, 16, [&](std::byte*, uint64_t) { ++released; });
    Buffer b = std::move(a);
    Buffer c;
    c = std::move(b);
  }
  EXPECT_EQ(released, 1);
}

TEST(BufferArea, LendsARunToManyWhoReadOrToOneWhoWrites) {
  Buffer memory = Buffer::on_heap(3 * 4096);
  BufferArea area(Tier::host, "units", memory.bytes());
  {
    Lease a = area.share(0, 8192), b = area.share(0, 8192), c = area.share(4096, 4096);
    EXPECT_EQ(a.data(), memory.data());
    EXPECT_EQ(c.data(), memory.data() + 4096);
    Lease d = area.lend(8192, 4096);
    EXPECT_EQ(d.size_bytes(), 4096u);
  }
  Lease whole = area.lend(0, 3 * 4096);
  EXPECT_EQ(whole.size_bytes(), 3u * 4096);
}

TEST(BufferAreaDeathTest, RefusesToLendWhatIsLent) {
  Buffer memory = Buffer::on_heap(2 * 4096);
  BufferArea area(Tier::host, "units", memory.bytes());
  Lease reader = area.share(0, 4096);
  EXPECT_DEATH(area.lend(0, 8192), "8192 B from 0 of units are asked for while 0 to 4096 are lent");
  Lease writer = area.lend(4096, 4096);
  EXPECT_DEATH(area.share(0, 8192), "while 4096 to 8192 are lent");
  EXPECT_DEATH(area.share(8192, 4096), "which has 8192");
}

TEST(BufferAreaDeathTest, RefusesToDieBeforeItsLeases) {
  Buffer memory = Buffer::on_heap(4096);
  EXPECT_DEATH(
      {
        Lease late;
        BufferArea area(Tier::host, "units", memory.bytes());
        late = area.lend(0, 4096);
      },
      "1 leases outlive units");
}

}  // namespace
}  // namespace penstock
