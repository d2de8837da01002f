#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "runtime/trainer/data/samples.h"
#include "runtime/trainer/data/token_file.h"
#include "tests/support/damage.h"
#include "tests/trainer/scratch_folder.h"

namespace penstock::trainer {
namespace {

template <typename Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

class Data : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    const std::string path = scratch_.path() + "/" + name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return path;
  }
  static std::vector<int32_t> all_of(const TokenFile& file) {
    std::vector<int32_t> tokens(file.tokens());
    file.read(0, tokens);
    return tokens;
  }
  // 0, 1, 2, ... : a token says where it stood.
  std::shared_ptr<const TokenFile> counting(const std::string& name, uint32_t count) {
    std::vector<uint32_t> numbers(count);
    for (uint32_t i = 0; i < count; ++i) numbers[i] = i;
    return std::move(*TokenFile::open(file(name, bytes_of_numbers(numbers)), TokenWidth::bytes_4));
  }

  std::string megatron_index(uint8_t dtype, const std::vector<int32_t>& lengths) {
    std::string index("MMIDIDX\0\0", 9);
    index += bytes_of_numbers<uint64_t>({1});
    index += static_cast<char>(dtype);
    index += bytes_of_numbers<uint64_t>({lengths.size(), lengths.size() + 1});
    index += bytes_of_numbers(lengths);
    index += std::string(8 * lengths.size() + 8 * (lengths.size() + 1), '\0');
    return index;
  }

  const ScratchFolder scratch_;
};

using TokenFiles = Data;

TEST_F(TokenFiles, HaveAnotherHashWithAnyOtherByte) {
  const std::string words = "Of Mans First Disobedience";
  const std::string hash = (*TokenFile::open(file("a.txt", words)))->hash();
  const Status samples = TokenFile::open(file("chats.jsonl", words)).status();
  EXPECT_NE(samples.remedy().find("chats.jsonl --model FOLDER --out DIR`, then --data DIR"), std::string::npos)
      << samples.remedy();
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ((*TokenFile::open(file("b.txt", words)))->hash(), hash);
  EXPECT_NE((*TokenFile::open(file("c.txt", words + "!")))->hash(), hash);
  for (size_t i = 0; i < words.size(); ++i) {
    std::string other = words;
    other[i] ^= 1;
    EXPECT_NE((*TokenFile::open(file("d.txt", other)))->hash(), hash) << "byte " << i;
  }
}

TEST_F(TokenFiles, ReadsEachKind) {
  const std::vector<int32_t> expected = {5, 40000, 7};
  EXPECT_EQ(all_of(**TokenFile::open(file("bare.bin", bytes_of_numbers<uint16_t>({5, 40000, 7})))), expected);
  EXPECT_EQ(all_of(**TokenFile::open(file("wide.bin", bytes_of_numbers<uint32_t>({5, 40000, 7})), TokenWidth::bytes_4)),
            expected);
  for (const auto& [magic, tokens] : {std::pair(20240520, bytes_of_numbers<uint16_t>({5, 40000, 7})),
                                      std::pair(20240801, bytes_of_numbers<uint32_t>({5, 40000, 7}))}) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic, header[1] = 1, header[2] = 3;
    EXPECT_EQ(all_of(**TokenFile::open(file("llmc.bin", bytes_of_numbers(header) + tokens))), expected);
  }
  file("megatron.idx", megatron_index(8, {1, 2}));
  EXPECT_EQ(all_of(**TokenFile::open(file("megatron.bin", bytes_of_numbers<uint16_t>({5, 40000, 7})))), expected);
  file("megatron.idx", megatron_index(4, {3}));
  EXPECT_EQ(all_of(**TokenFile::open(file("megatron.bin", bytes_of_numbers<int32_t>({5, 40000, 7})))), expected);
  for (const char* text : {"text.txt", "text.md"})
    EXPECT_EQ(all_of(**TokenFile::open(file(text, "a\xff"))), (std::vector<int32_t>{97, 255})) << text;
}

TEST_F(TokenFiles, RefusesWhatDoesNotFitTogether) {
  EXPECT_EQ(TokenFile::open(scratch_.path() + "/none.bin").status().code(), Code::kUsage);
  EXPECT_FALSE(TokenFile::open(file("odd.bin", "abc")).ok());
  EXPECT_FALSE(TokenFile::open(file("empty.txt", "")).ok());
  EXPECT_FALSE(TokenFile::open(scratch_.path()).ok());
  EXPECT_FALSE(TokenFile::open(file("what.data", "abcd")).ok());
  EXPECT_TRUE(TokenFile::open(scratch_.path() + "/what.data", TokenWidth::bytes_1).ok());
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[2] = 4;
  const auto short_file = TokenFile::open(file("short.bin", bytes_of_numbers(header) + "abcd"));
  ASSERT_FALSE(short_file.ok());
  EXPECT_NE(short_file.status().message().find("says 4 tokens, 2 are there"), std::string::npos);
  file("m.idx", megatron_index(8, {7}));
  EXPECT_FALSE(TokenFile::open(file("m.bin", "abcd")).ok());
  file("m.idx", megatron_index(5, {2}));
  EXPECT_FALSE(TokenFile::open(file("m.bin", "abcd")).ok());
}

TEST_F(TokenFiles, SaysWhichTokenTheVocabularyHasNot) {
  const auto opened = TokenFile::open(file("bare.bin", bytes_of_numbers<uint16_t>({5, 131, 7})));
  EXPECT_TRUE((*opened)->check(132).ok());
  const Status refused = (*opened)->check(131);
  EXPECT_NE(refused.message().find("token 1 is 131, the vocabulary has 131"), std::string::npos) << refused.message();
}

TEST_F(TokenFiles, AnIndexOfDamagedBytesIsRefusedOrCounts) {
  const std::string whole = megatron_index(8, {1, 2, 3, 400});
  const auto* data = reinterpret_cast<const std::byte*>(whole.data());
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    const auto index = parse_megatron_index(damaged({data, data + whole.size()}, random));
    accepted += index.ok();
    if (index.ok()) {
      EXPECT_TRUE(index->width_bytes == 2 || index->width_bytes == 4) << "seed " << seed;
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_LT(accepted, 19000u);
}

TEST(Shuffle, IsAPermutationThatDependsOnItsSeed) {
  for (uint64_t count : {1u, 2u, 3u, 7u, 64u, 1000u, 4097u}) {
    std::set<uint64_t> values;
    uint64_t fixed = 0, same = 0;
    const Shuffle shuffle(9, count), other(10, count);
    for (uint64_t place = 0; place < count; ++place) {
      const uint64_t value = shuffle.value_of(place);
      EXPECT_LT(value, count);
      values.insert(value);
      fixed += value == place, same += value == other.value_of(place);
    }
    EXPECT_EQ(values.size(), count);
    if (count >= 1000) {  // one of each is expected by chance; more than 10 has a probability below 1e-8
      EXPECT_LE(fixed, 10u);
      EXPECT_LE(same, 10u);
    }
  }
}

TEST_F(Data, AnEpochHasEverySampleOnceAndTheNextAnotherOrder) {
  const auto samples = *Samples::make({{counting("a", 1001), 1}}, {.length = 10, .seed = 3, .held_out_share = 0.1});
  EXPECT_EQ(samples.epoch_samples(), 90u);
  EXPECT_EQ(samples.held_out_samples(), 10u);
  std::set<int32_t> first_tokens;
  std::vector<int32_t> order[2];
  for (uint64_t number = 0; number < 180; ++number) {
    const MicroBatch batch = samples.batch(number, 1);
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(batch.tokens[i], batch.tokens[0] + static_cast<int32_t>(i));
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    }
    EXPECT_LT(batch.tokens[0], 900);
    first_tokens.insert(batch.tokens[0]);
    order[number / 90].push_back(batch.tokens[0]);
  }
  EXPECT_EQ(first_tokens.size(), 90u);
  EXPECT_NE(order[0], order[1]);
  std::sort(order[0].begin(), order[0].end()), std::sort(order[1].begin(), order[1].end());
  EXPECT_EQ(order[0], order[1]);
  EXPECT_EQ(samples.held_out_batch(3, 2).tokens[0], 930);
}

TEST_F(Data, WhatIsHeldOutIsKnownBySet) {
  const auto samples = *Samples::make({{counting("a", 1001), 1}, {counting("b", 301), 2}},
                                      {.length = 10, .seed = 3, .held_out_share = 0.1});
  const std::vector<Samples::HeldOut> sets = samples.held_out_of_sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_TRUE(sets[0].set.ends_with("a")) << sets[0].set;
  EXPECT_TRUE(sets[1].set.ends_with("b")) << sets[1].set;
  EXPECT_EQ(sets[0].first, 0u);
  EXPECT_EQ(sets[0].count, 10u);
  EXPECT_EQ(sets[1].first, 10u);
  EXPECT_EQ(sets[1].count, 3u);
  EXPECT_EQ(samples.held_out_batch(sets[1].first, 1).tokens[0], 270);
  EXPECT_TRUE(Samples::make({{counting("c", 1001), 1}}, {.length = 10, .seed = 3})->held_out_of_sets().empty());
}

TEST_F(Data, ASampleDependsOnItsNumberAlone) {
  const std::vector<DataSet> sets = {{counting("a", 1001), 3}, {counting("b", 5001), 1}};
  const Samples::Options options{.length = 10, .seed = 3, .held_out_share = 0};
  const auto some = *Samples::make(sets, options), again = *Samples::make(sets, options);
  const MicroBatch four = some.batch(1000, 4);
  for (uint64_t i = 0; i < 4; ++i) {
    const MicroBatch one = again.batch(1000 + i, 1);
    EXPECT_TRUE(
        std::equal(one.tokens.begin(), one.tokens.end(), four.tokens.begin() + static_cast<std::ptrdiff_t>(10 * i)));
  }
  EXPECT_NE(Samples::make(sets, {.length = 10, .seed = 4})->batch(1000, 4).tokens, four.tokens);
}

TEST_F(Data, SetsComeInTheShareOfTheirWeights) {
  const auto samples =
      *Samples::make({{counting("a", 100001), 3}, {counting("b", 100001), 1}}, {.length = 1, .seed = 3});
  // b's samples are told by nothing in the tokens, so count how often a token comes: a is through three times as often.
  std::vector<int> times(100001);
  for (uint64_t number = 0; number < 40000; ++number) ++times[static_cast<size_t>(samples.batch(number, 1).tokens[0])];
  // 30000 of a and 10000 of b, no repetition within each: 3000 tokens or so come twice.
  EXPECT_EQ(*std::max_element(times.begin(), times.end()), 2);
  const auto twice = std::count(times.begin(), times.end(), 2);
  EXPECT_NEAR(static_cast<double>(twice), 100000.0 * 0.3 * 0.1, 300);
  EXPECT_EQ(samples.epoch_samples(), 133333u);
}

TEST_F(Data, RefusesSetsWithoutASample) {
  EXPECT_FALSE(Samples::make({}, {.length = 10}).ok());
  EXPECT_FALSE(Samples::make({{counting("a", 10), 1}}, {.length = 10}).ok());
  EXPECT_TRUE(Samples::make({{counting("a", 11), 1}}, {.length = 10}).ok());
  EXPECT_FALSE(Samples::make({{counting("a", 11), 1}}, {.length = 10, .held_out_share = 0.1}).ok());
  EXPECT_FALSE(Samples::make({{counting("a", 11), 0}}, {.length = 10}).ok());
  EXPECT_FALSE(Samples::make({{counting("a", 100), 1}}, {.length = 10, .held_out_share = 1}).ok());
  EXPECT_FALSE(Samples::make({{counting("a", 100), 1}, {counting("b", 100), 1e9}}, {.length = 10}).ok());
}

}  // namespace
}  // namespace penstock::trainer
