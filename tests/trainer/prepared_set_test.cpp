#include "runtime/trainer/data/prepared_set.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "runtime/trainer/data/samples.h"
#include "tests/support/damage.h"
#include "tests/trainer/scratch_folder.h"

namespace penstock::trainer {
namespace {

template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

// Documents {1 2 3}, {10 11}, {20 21 22 23}, {30 31 32}, {40 41}, of which the second token and all after it are
// learnt, and nothing of the third document but its last token.
struct Written {
  std::vector<uint32_t> tokens = {1, 2, 3, 10, 11, 20, 21, 22, 23, 30, 31, 32, 40, 41};
  std::vector<uint8_t> learnt = {0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1};
  std::vector<uint64_t> documents = {0, 3, 5, 9, 12, 14};
  std::vector<uint64_t> order = {2, 1, 0, 4, 3};
  std::vector<uint64_t> rows = {0, 2, 4, 5};  // {3rd, 2nd}, {1st, 5th}, {4th}
  std::string sets = R"([{"name": "a", "weight": 3, "train": {"first_row": 0, "rows": 2},
                          "validation": {"first_row": 2, "rows": 1}}])";
  std::string length = "7";

  std::string manifest() const {
    return R"({"format": "penstock.data/1", "hash": "cafe", "padding": 99, "vocabulary": 100, "length": )" + length +
           R"(, "sets": )" + sets + R"(, "files": {"tokens.u32": {"bytes": )" + std::to_string(tokens.size() * 4) +
           R"(}, "learnt.u8": {"bytes": )" + std::to_string(learnt.size()) + R"(}, "documents.u64": {"bytes": )" +
           std::to_string(documents.size() * 8) + R"(}, "order.u64": {"bytes": )" + std::to_string(order.size() * 8) +
           R"(}, "rows.u64": {"bytes": )" + std::to_string(rows.size() * 8) + "}}}";
  }
};

class Prepared : public ::testing::Test {
 protected:
  std::string write(const Written& set) {
    const std::string folder = scratch_.path() + "/set" + std::to_string(written_++);
    std::filesystem::create_directory(folder);
    auto file = [&](const char* name, const std::string& content) {
      std::ofstream(folder + "/" + name, std::ios::binary) << content;
    };
    file("tokens.u32", bytes_of(set.tokens)), file("learnt.u8", bytes_of(set.learnt));
    file("documents.u64", bytes_of(set.documents)), file("order.u64", bytes_of(set.order));
    file("rows.u64", bytes_of(set.rows)), file("manifest.json", set.manifest());
    return folder;
  }
  std::string refusal(const Written& set) {
    const auto opened = PreparedSet::open(write(set));
    return opened.ok() ? "" : opened.status().message();
  }
  std::shared_ptr<const PreparedSet> opened(const Written& set) { return *PreparedSet::open(write(set)); }

  const ScratchFolder scratch_;
  int written_ = 0;
};

TEST_F(Prepared, ARowIsItsDocumentsAndThenPadding) {
  const auto set = opened({});
  EXPECT_EQ(set->manifest().hash, "cafe");
  std::vector<int32_t> tokens(8), targets(8), positions(8);
  const RowPlaces places{tokens, targets, positions};
  constexpr int32_t none = kIgnored;
  set->read_row(0, places);
  EXPECT_EQ(tokens, (std::vector<int32_t>{20, 21, 22, 23, 10, 11, 99, 99}));
  EXPECT_EQ(targets, (std::vector<int32_t>{none, none, 23, none, 11, none, none, none}));
  EXPECT_EQ(positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 0, 1}));
  set->read_row(1, places);
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3, 40, 41, 99, 99, 99}));
  EXPECT_EQ(targets, (std::vector<int32_t>{2, 3, none, 41, none, none, none, none}));
  EXPECT_EQ(positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 1, 2}));
}

TEST_F(Prepared, WhatWouldLeadOutOfTheFilesIsRefused) {
  struct Wrong {
    const char* word;
    std::function<void(Written&)> change;
  };
  const std::vector<Wrong> wrong = {
      {"learnt.u8 13", [](Written& set) { set.learnt.pop_back(); }},
      {"document 1 is tokens 3 to 99", [](Written& set) { set.documents[2] = 99; }},
      {"document 1 is tokens 3 to 4", [](Written& set) { set.documents[2] = 4; }},
      {"document 1 is tokens 3 to 2", [](Written& set) { set.documents[2] = 2; }},
      {"from 0 to 14", [](Written& set) { set.documents.back() = 13; }},
      {"2 to 3", [](Written& set) { set.length = "3"; }},
      {"row 0 has document 5", [](Written& set) { set.order[0] = 5; }},
      {"do not have all", [](Written& set) { set.order.pop_back(); }},
      {"row 1 is documents 2 to 2", [](Written& set) { set.rows[2] = 2; }},
      {"row 0 is documents 0 to 7", [](Written& set) { set.rows[1] = 7; }},
      {"row 0 has 6 tokens, at most 5", [](Written& set) { set.length = "5"; }},
      {"rows 0 and 4", [](Written& set) { set.sets.replace(set.sets.find("\"rows\": 2"), 9, "\"rows\": 4"); }},
      {"weight of -3", [](Written& set) { set.sets.replace(set.sets.find("3"), 1, "-3"); }},
      {"length: 1", [](Written& set) { set.length = "1"; }},
      {"sets: an array", [](Written& set) { set.sets = "[]"; }},
  };
  EXPECT_EQ(refusal({}), "");
  for (const Wrong& one : wrong) {
    Written set;
    one.change(set);
    EXPECT_NE(refusal(set).find(one.word), std::string::npos) << one.word << ": " << refusal(set);
  }
  const std::string folder = write({});
  std::filesystem::resize_file(folder + "/order.u64", 32);
  const auto cut = PreparedSet::open(folder);
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.status().message().find("order.u64: 32 B, its manifest says 40"), std::string::npos);
  const auto empty = PreparedSet::open(scratch_.path());
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.status().message().find("not a prepared set"), std::string::npos);
}

TEST_F(Prepared, AManifestOfDamagedBytesIsRefusedOrCounts) {
  const std::string whole = Written().manifest();
  const auto* data = reinterpret_cast<const std::byte*>(whole.data());
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::byte> bytes = damaged({data, data + whole.size()}, random);
    const auto manifest = parse_prepared_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    accepted += manifest.ok();
    if (manifest.ok()) {
      EXPECT_TRUE(manifest->length >= 2 && !manifest->parts.empty()) << "seed " << seed;
    }
  }
  EXPECT_GT(accepted, 10u);
  EXPECT_LT(accepted, 4000u);
}

TEST_F(Prepared, TokensThatTheVocabularyHasNotAreRefused) {
  const auto set = opened({});
  EXPECT_TRUE(set->check(100).ok());
  EXPECT_NE(set->check(41).message().find("token 13 is 41"), std::string::npos);
  EXPECT_NE(set->check(99).message().find("the padding is 99"), std::string::npos);
}

TEST_F(Prepared, SamplesAreItsRowsAndWhatIsHeldOutIsItsOwn) {
  const auto set = opened({});
  const auto samples = *Samples::make({{.file = nullptr, .prepared = set}}, {.length = 8, .held_out_share = 0.5});
  EXPECT_EQ(samples.epoch_samples(), 2u);
  EXPECT_EQ(samples.held_out_samples(), 1u);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const MicroBatch batch = samples.batch(2 * epoch, 2);
    EXPECT_EQ(batch.positions.size(), 16u);
    EXPECT_EQ((std::set<int32_t>{batch.tokens[0], batch.tokens[8]}), (std::set<int32_t>{1, 20}));
    EXPECT_EQ(batch.supervised(), 5u);
  }
  EXPECT_EQ(samples.held_out_batch(0, 1).tokens[0], 30);
  const auto short_samples = Samples::make({{.file = nullptr, .prepared = set}}, {.length = 6});
  ASSERT_FALSE(short_samples.ok());
  EXPECT_NE(short_samples.status().message().find("rows of 7 tokens do not fit into samples of 6"), std::string::npos);
}

TEST_F(Prepared, ASetThatHasOnlyHeldOutRowsIsNotTrainedOn) {
  Written set;
  set.sets = R"([{"name": "a", "weight": 3, "train": {"first_row": 0, "rows": 0},
                  "validation": {"first_row": 0, "rows": 3}}])";
  const auto samples = Samples::make({{.file = nullptr, .prepared = opened(set)}}, {.length = 8});
  ASSERT_FALSE(samples.ok());
  EXPECT_NE(samples.status().message().find("set 'a' has no rows to train on"), std::string::npos);
}

TEST_F(Prepared, BesideAFileOfTokensBatchesHavePositions) {
  const std::string path = scratch_.path() + "/plain.bin";
  std::vector<uint32_t> numbers(81);
  for (uint32_t i = 0; i < 81; ++i) numbers[i] = 50 + i;
  std::ofstream(path, std::ios::binary) << bytes_of(numbers);
  std::shared_ptr<const TokenFile> file = *TokenFile::open(path, TokenWidth::bytes_4);
  const auto samples = *Samples::make({{.file = file}, {.file = nullptr, .prepared = opened({})}}, {.length = 8});
  const MicroBatch batch = samples.batch(0, 2);
  std::vector<int32_t> own(batch.positions.begin(), batch.positions.begin() + 8);
  EXPECT_GE(batch.tokens[0], 50);
  EXPECT_EQ(own, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_LT(batch.tokens[8], 50);
}

}  // namespace
}  // namespace penstock::trainer
