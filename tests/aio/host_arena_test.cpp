#include "aio/host_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "aio/available_memory.h"

namespace penstock::aio {
namespace {

uintptr_t address(std::span<std::byte> bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); }

TEST(HostArena, CutsAlignedRunsThatDoNotOverlap) {
  auto arena = HostArena::make(16 * kMiB);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  const auto small = (*arena)->take("roots", 5000).value();
  const auto large = (*arena)->take("tiles", 5 * kMiB).value();
  const auto more = (*arena)->take("roots", 4096).value();
  EXPECT_EQ(small.size(), 5000u);
  EXPECT_EQ(address(small) % kAlignmentBytes, 0u);
  EXPECT_EQ(address(large) % (2 * kMiB), 0u);
  EXPECT_GE(large.data(), small.data() + small.size());
  EXPECT_GE(more.data(), large.data() + large.size());
  EXPECT_EQ((*arena)->budget().lines().size(), 2u);
}

TEST(HostArena, RefusesWhatIsNotLeftWithNeededAndAvailable) {
  auto arena = HostArena::make(4 * kMiB);
  ASSERT_TRUE(arena.ok());
  auto refused = (*arena)->take("tiles", 5 * kMiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  EXPECT_TRUE((*arena)->take("tiles", 4 * kMiB).ok()) << "a refusal takes nothing";
}

TEST(HostArena, CountsWhatAlignmentLeavesUnused) {
  auto arena = HostArena::make(4 * kMiB);
  ASSERT_TRUE(arena.ok());
  ASSERT_TRUE((*arena)->take("roots", 4096).ok());
  // It begins at the second huge page, of two.
  auto refused = (*arena)->take("tiles", 3 * kMiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  const auto fits = (*arena)->take("tiles", 2 * kMiB);
  ASSERT_TRUE(fits.ok()) << fits.status().message();
  EXPECT_EQ(fits->data() + fits->size(), (*arena)->bytes().data() + (*arena)->bytes().size());
}

TEST(HostArena, RefusesMoreThanThereIsBeforeTakingIt) {
  const AvailableMemory available = AvailableMemory::now();
  EXPECT_GT(available.bytes, 0u);
  auto refused = HostArena::make(available.bytes * 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  EXPECT_NE(refused.status().message().find("available"), std::string::npos) << refused.status().message();
  EXPECT_FALSE(refused.status().remedy().empty());
  EXPECT_FALSE(HostArena::make(0).ok());
}

TEST(HostArena, GrowsWhereItIsUpToWhatWasReserved) {
  auto arena = HostArena::make(4 * kMiB, PageKind::explicit_huge, 11 * kMiB);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  if ((*arena)->most_bytes() == 4 * kMiB) GTEST_SKIP() << "addresses are limited here";
  EXPECT_EQ((*arena)->most_bytes(), 12 * kMiB);
  std::byte* const first = (*arena)->bytes().data();
  std::memset(first, 0x5a, 4 * kMiB);
  ASSERT_TRUE((*arena)->grow(9 * kMiB).ok());
  ASSERT_EQ((*arena)->bytes().size(), 10 * kMiB);
  EXPECT_EQ((*arena)->bytes().data(), first);
  EXPECT_EQ(first[4 * kMiB - 1], std::byte{0x5a});
  std::memset(first + 4 * kMiB, 0x17, 6 * kMiB);  // it is memory
  ASSERT_TRUE((*arena)->grow(kMiB).ok()) << "it never shrinks";
  EXPECT_EQ((*arena)->bytes().size(), 10 * kMiB);
  const Status refused = (*arena)->grow(13 * kMiB);
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  EXPECT_EQ(refused.message(),
            "host arena: 14680064 B (14.00 MiB) needed, 12582912 B (12.00 MiB) reserved when it was made");
  EXPECT_EQ((*arena)->bytes().size(), 10 * kMiB);
  EXPECT_EQ(first[0], std::byte{0x5a});
}

TEST(HostArena, RefusesToGrowByMoreThanThereIsAndStaysAsItWas) {
  const uint64_t too_much = 2 * AvailableMemory::now().bytes;
  auto arena = HostArena::make(2 * kMiB, PageKind::small, too_much);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  if ((*arena)->most_bytes() == 2 * kMiB) GTEST_SKIP() << "addresses are limited here";
  const Status refused = (*arena)->grow(too_much);
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  EXPECT_NE(refused.message().find("available"), std::string::npos) << refused.message();
  EXPECT_EQ((*arena)->bytes().size(), 2 * kMiB);
  EXPECT_TRUE((*arena)->grow(4 * kMiB).ok());
}

TEST(HostArena, SaysWhichPagesItReallyHas) {
  auto small = HostArena::make(8 * kMiB, PageKind::small);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ((*small)->pages(), PageKind::small);
  EXPECT_EQ((*small)->huge_bytes(), 0u);
  auto huge = HostArena::make(8 * kMiB, PageKind::transparent_huge);
  ASSERT_TRUE(huge.ok());
  EXPECT_EQ((*huge)->pages() == PageKind::transparent_huge, (*huge)->huge_bytes() > 0) << (*huge)->description();
  const uint64_t reserved = free_huge_page_bytes();
  auto best = HostArena::make(8 * kMiB);
  ASSERT_TRUE(best.ok());
  if (reserved >= 8 * kMiB) {
    EXPECT_EQ((*best)->pages(), PageKind::explicit_huge);
    EXPECT_EQ((*best)->huge_bytes(), 8 * kMiB);
  } else {
    EXPECT_NE((*best)->pages(), PageKind::explicit_huge);
  }
}

TEST(HostArena, IsPopulated) {
  auto arena = HostArena::make(8 * kMiB, PageKind::small);
  ASSERT_TRUE(arena.ok());
  std::vector<unsigned char> resident(8 * kMiB / 4096);
  ASSERT_EQ(mincore((*arena)->bytes().data(), 8 * kMiB, resident.data()), 0);
  for (unsigned char page : resident) EXPECT_EQ(page & 1, 1);
}

TEST(HostArena, ChildrenDoNotInheritIt) {
  auto arena = HostArena::make(4 * kMiB);
  ASSERT_TRUE(arena.ok());
  const std::span<std::byte> bytes = (*arena)->bytes().first(4096);
  std::memset(bytes.data(), 0x5a, bytes.size());
  const pid_t child = fork();
  if (child == 0) {
    // Not mapped, or by now something else: a sanitizer's run time takes memory of its own in a child.
    static std::byte found[4096];
    const iovec into{found, sizeof(found)}, from{bytes.data(), bytes.size()};
    const bool mapped = process_vm_readv(getpid(), &into, 1, &from, 1, 0) == static_cast<ssize_t>(sizeof(found));
    _exit(mapped && found[0] == std::byte(0x5a) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock::aio
