#include "tiering/store/root_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/damage.h"
#include "tests/support/store_records.h"
#include "tiering/store/store_header.h"

namespace penstock {
namespace {

TEST(RootRecord, ComesBackAsItWas) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    RootRecord root = random_root(random);
    std::vector<std::byte> bytes = root.encode();
    ASSERT_EQ(bytes.size(), kRecordBytes);
    Result<RootRecord> back = RootRecord::decode(bytes, "root");
    ASSERT_TRUE(back.ok()) << "seed " << seed << ": " << back.status().message();
    EXPECT_EQ(*back, root) << "seed " << seed;
  }
}

TEST(RootRecord, HoldsTheMostPagesAndTheLongestConfigurationHashAtOnce) {
  RootRecord root;
  root.sequence = 1;
  root.page_slots.assign(kPagesMax, 3);
  root.config_hash.assign(kConfigHashBytesMax, 'x');
  EXPECT_EQ(*RootRecord::decode(root.encode(), "root"), root);
}

TEST(RootRecord, RefusesEveryBitFlip) {
  RootRecord root;
  root.sequence = 7;
  root.config_hash = "seed";
  std::vector<std::byte> bytes = root.encode();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_FALSE(RootRecord::decode(bytes, "root").ok()) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// Fields are looked at even when the checksum is right: what was written by a program that errs.
TEST(RootRecord, SurvivesAnyFieldsUnderARightChecksum) {
  uint64_t refused = 0;
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes = random_root(random).encode();
    std::span<std::byte> fields = std::span(bytes).subspan(12, 60);
    for (int i = 0; i < 4; ++i) fields[random() % fields.size()] = static_cast<std::byte>(random());
    seal(bytes);
    Result<RootRecord> root = RootRecord::decode(bytes, "root");
    if (!root.ok()) {
      ++refused;
      continue;
    }
    ASSERT_LE(root->page_slots.size(), kPagesMax) << "seed " << seed;
    ASSERT_EQ(RootRecord::decode(root->encode(), "root")->config_hash, root->config_hash);
  }
  EXPECT_GT(refused, 1000u);
}

TEST(RootRecord, RefusesNumbersThatHaveNoNext) {
  RootRecord root;
  root.sequence = kStepMax;
  root.step = kStepMax;
  EXPECT_TRUE(RootRecord::decode(root.encode(), "root").ok());
  for (uint64_t beyond : {kStepMax + 1, ~uint64_t{0}}) {
    root.sequence = beyond;
    EXPECT_EQ(RootRecord::decode(root.encode(), "root").status().code(), Code::kCorrupt) << beyond;
    root.sequence = 1;
    root.step = beyond;
    EXPECT_EQ(RootRecord::decode(root.encode(), "root").status().code(), Code::kCorrupt) << beyond;
    root.step = 0;
  }
}

// One that is not a number would differ from every copy of itself.
TEST(RootRecord, RefusesALossScaleThatIsNoNumber) {
  RootRecord root;
  root.sequence = 1;
  for (double scale : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    root.loss_scale = scale;
    EXPECT_EQ(RootRecord::decode(root.encode(), "root").status().code(), Code::kCorrupt) << scale;
  }
}

TEST(StoreHeader, RefusesWhatNoStoreHas) {
  const StoreHeader good{.store = {1, 2}, .shares = {5000, 5000}, .shape_bytes = 100, .file_bytes = 1 << 20};
  ASSERT_TRUE(StoreHeader::decode(good.encode(), "header").ok());
  std::vector<StoreHeader> bad(7, good);
  bad[0].shares[1] = 0;
  bad[1].shares[1] = 10001;
  bad[2].shape_bytes = 0;
  bad[3].shape_bytes = (1 << 20) - 4096;  // in the file, and past its end from where shapes begin
  bad[4].file_bytes = 4096;
  bad[5].state_capacity.trainer_bytes = kTrainerStateBytesMax + 1;
  bad[6].weights = static_cast<WeightPlacement>(2);
  for (const StoreHeader& header : bad) {
    EXPECT_EQ(StoreHeader::decode(header.encode(), "header").status().code(), Code::kCorrupt);
  }
}

TEST(StoreHeader, ComesBackAsItWasAndRefusesDamage) {
  StoreHeader header{.store = {1, 2},
                     .drive = 1,
                     .slots = 3,
                     .shares = {2000, 5000, 3000},
                     .state_capacity = {100, 200},
                     .weights = WeightPlacement::by_unit,
                     .shape_bytes = 100,
                     .shape_digest = 77,
                     .file_bytes = 1 << 20};
  EXPECT_EQ(*StoreHeader::decode(header.encode(), "header"), header);
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes = damaged(header.encode(), random);
    bytes.resize(kRecordBytes);
    Result<StoreHeader> read = StoreHeader::decode(bytes, "header");
    EXPECT_TRUE(!read.ok() || *read == header) << "seed " << seed;
  }
}

TEST(StoreRecord, TellsAnotherVersionFromADamagedOneAndFromAStranger) {
  StoreHeader header{.store = {1, 2}, .shares = {1}, .file_bytes = 4096};
  std::vector<std::byte> other_version = header.encode();
  other_version[8] = std::byte{9};
  seal(other_version);
  Result<StoreHeader> read = StoreHeader::decode(other_version, "a.tiles: store header");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kUsage);
  EXPECT_NE(read.status().message().find("written in store format 9, this program reads format 2 to 3"),
            std::string::npos);

  std::vector<std::byte> rotted = header.encode();
  rotted[100] ^= std::byte{1};
  EXPECT_EQ(StoreHeader::decode(rotted, "header").status().code(), Code::kCorrupt);

  std::vector<std::byte> stranger(kRecordBytes, std::byte{7});
  EXPECT_NE(StoreHeader::decode(stranger, "x").status().message().find("not a penstock store record"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
