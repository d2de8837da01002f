#include "tiering/arithmetic/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace penstock {
namespace {

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = std::byte(random());
  return bytes;
}

// Data that looks like nothing, like sparse state, and like random state: a checksum must not need entropy.
std::vector<std::vector<std::byte>> blocks() {
  std::vector<std::vector<std::byte>> out = {std::vector<std::byte>(4096),
                                             std::vector<std::byte>(4096, std::byte{0xff}), random_bytes(4096, 1),
                                             random_bytes(1000, 2)};
  out.push_back(std::vector<std::byte>(4096));
  for (size_t i = 0; i < 4096; i += 256) out.back()[i] = std::byte(1);
  return out;
}

// The figures come from a few lines of Python that follow the header's words.
TEST(Checksum, KeepsItsValue) {
  std::vector<std::byte> block(1000);
  for (size_t i = 0; i < block.size(); ++i) block[i] = std::byte(i * 7);
  EXPECT_EQ(checksum({}, 0), 0xf0800d8acf56c7ad);
  EXPECT_EQ(checksum(block, 7), 0xc84e17e6dce3a2a4);
}

TEST(Checksum, SeesEveryFlippedBit) {
  for (std::vector<std::byte>& block : blocks()) {
    const uint64_t right = checksum(block, 3);
    for (size_t bit = 0; bit < block.size() * 8; ++bit) {
      block[bit / 8] ^= std::byte(1 << bit % 8);
      ASSERT_NE(checksum(block, 3), right) << "bit " << bit;
      block[bit / 8] ^= std::byte(1 << bit % 8);
    }
  }
}

TEST(Checksum, SeesEveryChangeOfAWord) {
  std::mt19937_64 random(4);
  for (std::vector<std::byte>& block : blocks()) {
    const uint64_t right = checksum(block, 3);
    for (int round = 0; round < 20000; ++round) {
      auto* words = reinterpret_cast<uint32_t*>(block.data());
      uint32_t& word = words[random() % (block.size() / 4)];
      const uint32_t before = word;
      word = round % 2 == 0 ? static_cast<uint32_t>(random()) : ~before;
      ASSERT_EQ(checksum(block, 3) == right, word == before) << "seed 4, round " << round;
      word = before;
    }
  }
}

TEST(Checksum, SeesSwappedWordsAndStripes) {
  std::mt19937_64 random(5);
  std::vector<std::byte> block = random_bytes(16384, 6);
  const uint64_t right = checksum(block, 3);
  for (int round = 0; round < 20000; ++round) {
    const size_t run = size_t{4} << round % 11;
    const size_t a = random() % (block.size() / run) * run, b = random() % (block.size() / run) * run;
    if (a == b) continue;
    std::swap_ranges(block.begin() + a, block.begin() + a + run, block.begin() + b);
    ASSERT_NE(checksum(block, 3), right) << "seed 5, runs of " << run << " at " << a << " and " << b;
    std::swap_ranges(block.begin() + a, block.begin() + a + run, block.begin() + b);
  }
}

TEST(Checksum, SeesZeroedAndShiftedRuns) {
  const std::vector<std::byte> whole = random_bytes(16384, 8);
  const uint64_t right = checksum(whole, 3);
  for (size_t run = 4; run <= 4096; run *= 2) {
    for (size_t at = 0; at + run <= whole.size(); at += run) {
      std::vector<std::byte> block = whole;
      std::fill_n(block.begin() + at, run, std::byte{0});
      ASSERT_NE(checksum(block, 3), right);
      block = whole;
      std::copy(whole.begin(), whole.end() - run, block.begin() + run);
      ASSERT_NE(checksum(block, 3), right);
    }
  }
}

TEST(Checksum, TellsLengthsOfZerosAndPlacesApart) {
  std::set<uint64_t> seen;
  const std::vector<std::byte> zeros(4096);
  for (size_t length = 0; length <= zeros.size(); ++length) seen.insert(checksum({zeros.data(), length}, 0));
  EXPECT_EQ(seen.size(), zeros.size() + 1);
  for (uint64_t place = 1; place <= 100000; ++place) seen.insert(checksum({zeros.data(), 64}, place));
  EXPECT_EQ(seen.size(), zeros.size() + 1 + 100000);
}

}  // namespace
}  // namespace penstock
