#include "aio/stripe_set.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "tests/support/instrumented.h"
#include "tests/support/memory_backend.h"

namespace penstock::aio {
namespace {

struct Drives {
  explicit Drives(const StripeSet& set, uint64_t bytes) {
    for (size_t d = 0; d < set.drives(); ++d) {
      owned.push_back(
          std::make_unique<MemoryFile>(text("drive", d), set.file_bytes(d, bytes), static_cast<uint32_t>(d)));
      files.push_back(owned.back().get());
    }
  }
  std::vector<std::unique_ptr<MemoryFile>> owned;
  std::vector<const File*> files;
};

std::vector<double> random_shares(std::mt19937_64& random) {
  std::vector<double> shares(1 + random() % 6);
  for (double& share : shares) share = 1 + static_cast<double>(random() % 1000) / 10;
  return shares;
}

TEST(StripeSet, EveryByteHasOnePlaceAndEveryPlaceOneByte) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const StripeSet set(random_shares(random), kAlignmentBytes * (8 + random() % 120));
    const uint64_t bytes = set.row_bytes() * (1 + random() % 5);
    Drives drives(set, bytes);
    std::map<std::pair<const File*, uint64_t>, uint64_t> byte_at;
    // Cut anywhere, the places are the same.
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t run = std::min(bytes - at, kAlignmentBytes * (1 + random() % 100));
      std::vector<Extent> extents;
      set.map(drives.files, at, run, 0, extents);
      uint64_t in_lease = 0;
      for (const Extent& extent : extents) {
        ASSERT_EQ(extent.lease_offset_bytes, in_lease) << "seed 1, round " << round;
        ASSERT_EQ(extent.offset_bytes % kAlignmentBytes + extent.length_bytes % kAlignmentBytes, 0u);
        ASSERT_LE(extent.offset_bytes + extent.length_bytes, extent.file->size_bytes());
        for (uint64_t b = 0; b < extent.length_bytes; b += kAlignmentBytes) {
          ASSERT_TRUE(byte_at.emplace(std::pair(extent.file, extent.offset_bytes + b), at + in_lease + b).second);
        }
        in_lease += extent.length_bytes;
      }
      ASSERT_EQ(in_lease, run);
      at += run;
    }
    uint64_t places = 0;
    for (const File* file : drives.files) places += file->size_bytes();
    EXPECT_EQ(byte_at.size() * kAlignmentBytes, places) << "a file has room that nothing uses";
  }
}

TEST(StripeSet, HasRoomForBytesThatAreNoWholeRow) {
  const StripeSet set(std::vector<double>{3, 1}, 8 * kAlignmentBytes);
  for (uint64_t sectors : {1, 7, 8, 9}) {
    Drives drives(set, sectors * kAlignmentBytes);
    std::vector<Extent> extents;
    set.map(drives.files, 0, sectors * kAlignmentBytes, 0, extents);
    for (const Extent& extent : extents)
      EXPECT_LE(extent.offset_bytes + extent.length_bytes, extent.file->size_bytes()) << sectors << " sectors";
  }
}

TEST(StripeSet, EveryRunOfARowHasItsShareOnEveryDrive) {
  std::mt19937_64 random(2);
  for (uint64_t round = 0; round < test::fewer(500); ++round) {
    const std::vector<double> shares = random_shares(random);
    double sum = 0;
    for (double share : shares) sum += share;
    const StripeSet set(shares);
    Drives drives(set, 4 * set.row_bytes());
    std::vector<Extent> extents;
    set.map(drives.files, random() % 700 * kAlignmentBytes, set.row_bytes(), 0, extents);
    std::map<const File*, uint64_t> on;
    for (const Extent& extent : extents) on[extent.file] += extent.length_bytes;
    for (size_t d = 0; d < shares.size(); ++d) {
      const double wanted = shares[d] / sum * static_cast<double>(set.row_bytes());
      EXPECT_NEAR(static_cast<double>(on[drives.files[d]]), wanted, 2.0 * kAlignmentBytes) << "seed 2, round " << round;
    }
    EXPECT_LE(extents.size(), shares.size() + 1)
        << "one extent a drive, and one more where the run begins inside a part";
  }
}

TEST(StripeSet, NoDriveGoesEmpty) {
  const double shares[] = {1e9, 1, 1e-9};
  const StripeSet set(shares, 16 * kAlignmentBytes);
  EXPECT_EQ(set.part_bytes(0), 14 * kAlignmentBytes);
  EXPECT_EQ(set.part_bytes(1), kAlignmentBytes);
  EXPECT_EQ(set.part_bytes(2), kAlignmentBytes);
}

}  // namespace
}  // namespace penstock::aio
