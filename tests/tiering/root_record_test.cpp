#include "tiering/root_record.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/damage.h"
#include "tiering/checksum.h"
#include "tiering/store_header.h"

namespace penstock {
namespace {

std::string random_string(std::mt19937_64& random, size_t size_max) {
  std::string characters(random() % (size_max + 1), ' ');
  for (char& character : characters) character = static_cast<char>(random());
  return characters;
}

RootRecord random_root(std::mt19937_64& random) {
  RootRecord root;
  root.store = {random(), random()};
  root.sequence = 1 + random() % 1000;
  root.state = random() % 2 ? RootRecord::State::whole : RootRecord::State::torn;
  root.shape_digest = random();
  root.table_digest = random();
  for (uint64_t pages = random() % 50; pages > 0; --pages) root.page_slots.push_back(random() % 4);
  root.payload = {random(),
                  static_cast<double>(random() % 65536),
                  random_string(random, 500),
                  random_string(random, 500),
                  random_string(random, 500),
                  random_string(random, 32)};
  return root;
}

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

TEST(RootRecord, HoldsTheMostPagesAndTheLargestPayloadAtOnce) {
  RootRecord root;
  root.sequence = 1;
  root.page_slots.assign(kTablePagesMax, 3);
  root.payload.rng.assign(kPayloadBytesMax, 'x');
  EXPECT_EQ(*RootRecord::decode(root.encode(), "root"), root);
}

TEST(RootRecord, RefusesEveryBitFlip) {
  RootRecord root;
  root.sequence = 7;
  root.payload.rng = "seed";
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
    uint64_t magic = ByteReader(bytes).get<uint64_t>();
    uint64_t right = checksum(std::span(bytes).first(kRecordBytes - 8), magic);
    std::memcpy(bytes.data() + kRecordBytes - 8, &right, 8);
    Result<RootRecord> root = RootRecord::decode(bytes, "root");
    if (!root.ok()) {
      ++refused;
      continue;
    }
    ASSERT_LE(root->page_slots.size(), kTablePagesMax) << "seed " << seed;
    ASSERT_EQ(RootRecord::decode(root->encode(), "root")->payload.size_bytes(), root->payload.size_bytes());
  }
  EXPECT_GT(refused, 1000u);
}

TEST(StoreHeader, ComesBackAsItWasAndRefusesDamage) {
  StoreHeader header{.store = {1, 2},
                     .drive = 1,
                     .slots = 3,
                     .shares = {2000, 5000, 3000},
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
  uint64_t magic = ByteReader(other_version).get<uint64_t>();
  other_version[8] = std::byte{9};
  uint64_t right = checksum(std::span(other_version).first(kRecordBytes - 8), magic);
  std::memcpy(other_version.data() + kRecordBytes - 8, &right, 8);
  Result<StoreHeader> read = StoreHeader::decode(other_version, "a.tiles: store header");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kUsage);
  EXPECT_NE(read.status().message().find("written in format 9, this program reads format 1"), std::string::npos);

  std::vector<std::byte> rotted = header.encode();
  rotted[100] ^= std::byte{1};
  EXPECT_EQ(StoreHeader::decode(rotted, "header").status().code(), Code::kCorrupt);

  std::vector<std::byte> stranger(kRecordBytes, std::byte{7});
  EXPECT_NE(StoreHeader::decode(stranger, "x").status().message().find("not a penstock store"), std::string::npos);
}

}  // namespace
}  // namespace penstock
