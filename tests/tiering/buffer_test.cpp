#include "tiering/buffer.h"

#include <gtest/gtest.h>
#include <vector>

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

TEST(Buffer, OfBorrowedMemoryLendsItAndLeavesItToItsOwner) {
  std::vector<std::byte> memory(64, std::byte{7});
  {
    Buffer buffer = Buffer::borrowed(Tier::host, memory);
    const Lease part = buffer.lend(std::span<const std::byte>(memory).subspan(16, 8));
    EXPECT_EQ(part.data(), memory.data() + 16);
    EXPECT_EQ(part.size_bytes(), 8u);
  }
  EXPECT_EQ(memory[16], std::byte{7});
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

TEST(Lease, OfAPieceThatIsSharedKeepsItFromOthersUntilBothHaveEnded) {
  Buffer memory = Buffer::on_heap(2 * 4096);
  BufferPool pool(Tier::host, memory.bytes(), 4096);
  std::optional<Lease> first = pool.try_lease();
  Lease part = first->also(512, 1024);
  EXPECT_EQ(part.data(), first->data() + 512);
  EXPECT_EQ(part.size_bytes(), 1024u);
  first.reset();
  EXPECT_EQ(pool.pieces_free(), 1u);
  part = Lease();
  EXPECT_EQ(pool.pieces_free(), 2u);
}

TEST(LeaseDeathTest, OfARunThatIsSharedKeepsItFromOthersUntilBothHaveEnded) {
  Buffer memory = Buffer::on_heap(2 * 4096);
  BufferArea area(Tier::host, "units", memory.bytes());
  Lease owner = area.lend(0, 4096);
  Lease request = owner.also();
  owner = Lease();
  EXPECT_DEATH(area.lend(0, 4096), "while 0 to 4096 are lent");
  request = Lease();
  EXPECT_EQ(area.lend(0, 8192).size_bytes(), 8192u);
}

TEST(BufferArea, LendsWhatIsPassedOnWhileRequestsOnStreamsStillHoldIt) {
  Buffer memory = Buffer::on_heap(4096);
  BufferArea area(Tier::device, "arena", memory.bytes());
  Lease place = area.lend(0, 4096);
  Lease copy = place.also();
  area.pass_on(std::move(place));
  Lease next = area.lend(0, 2048);
  EXPECT_DEATH(area.lend(0, 4096), "while 0 to 2048 are lent");
  copy = Lease();
  EXPECT_DEATH(area.share(0, 2048), "while 0 to 2048 are lent");
  next = Lease();
  EXPECT_EQ(area.share(0, 4096).size_bytes(), 4096u);
}

TEST(BufferDeathTest, RefusesToMoveOrDieBeforeItsLeases) {
  EXPECT_DEATH(
      {
        Lease late;
        Buffer memory = Buffer::on_heap(4096);
        late = memory.lend();
      },
      "1 leases outlive a buffer of 4096 B");
  Buffer memory = Buffer::on_heap(4096);
  const Lease half = memory.lend(2048, 2048);
  EXPECT_EQ(half.data(), memory.data() + 2048);
  EXPECT_DEATH(Buffer moved = std::move(memory), "moves away under 1 leases");
  EXPECT_DEATH(memory.lend(4096, 1), "1 B from 4096 of a buffer of 4096");
}

}  // namespace
}  // namespace penstock
