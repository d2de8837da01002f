// What `penstock verify` says where tiered and plain steps differ, which they never should: by words that were changed
// in a store.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/aio/test_files.h"
#include "tools/penstock/update_common.h"
#include "tools/update/plain_run.h"

namespace penstock::tools {
namespace {

class PlainRunBeside : public testing::Test {
 protected:
  static constexpr uint64_t kSteps = 2;

  void SetUp() override {
    UpdateSettings settings;
    settings.parameters = 400'000;
    settings.unit_elements = 200'000;
    settings.folders = {folder_ / "store"};
    settings.host_bytes = kGiB * 4;
    run_.emplace(settings);
    std::filesystem::create_directory(settings.folders[0]);
    ASSERT_TRUE(run_->create(aio::CreateOptions::Existing::refuse).ok());
    const Status opened = run_->open();
    ASSERT_TRUE(opened.ok()) << opened.message();
    plain_.emplace(*run_);
    for (uint64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(run_->step().ok());
      plain_->step();
    }
  }
  Comparison compare() {
    Result<Comparison> comparison = plain_->compare(run_->engine());
    CHECK(comparison.ok(), comparison.status().message());
    return *comparison;
  }
  // Of a parameter, the last bit of one word; twice, and it is as it was.
  template <typename Value>
  void flip(uint32_t unit, Role role, uint64_t element) {
    Value value = {};
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    ASSERT_TRUE(run_->engine().read(unit, role, element, bytes).ok());
    bytes[0] ^= std::byte{1};
    ASSERT_TRUE(run_->engine().write(unit, role, element, bytes).ok());
  }

  const aio::ScratchFolder folder_{std::filesystem::current_path()};
  std::optional<UpdateRun> run_;
  std::optional<PlainRun> plain_;
};

TEST_F(PlainRunBeside, FindsNothingInWhatNobodyHasTouched) {
  const Comparison comparison = compare();
  EXPECT_EQ(comparison.words_different, 0u);
  EXPECT_EQ(comparison.words_compared, 4 * run_->model().parameters());
  EXPECT_FALSE(comparison.first);
  const Answer answer = answer_to_comparison(comparison, kSteps);
  EXPECT_TRUE(answer.verdict.ok());
  EXPECT_TRUE(answer.json["first_difference"].is_null());
}

TEST_F(PlainRunBeside, NamesAWordByItsParameter) {
  const Unit& unit = run_->model().units()[1];
  ASSERT_GE(unit.parameters.size(), 2u);
  const Parameter& parameter = unit.parameters[1];
  const std::pair<Role, std::string> roles[] = {
      {Role::weight, ""}, {Role::momentum, " momentum"}, {Role::variance, " variance"}};
  for (const auto& [role, word] : roles) {
    const auto change = [&, role = role] {
      const uint64_t element = parameter.first_element + 5;
      role == Role::weight ? flip<uint16_t>(1, role, element) : flip<float>(1, role, element);
    };
    change();
    const Comparison comparison = compare();
    EXPECT_EQ(comparison.words_different, 1u) << word;
    ASSERT_TRUE(comparison.first) << word;
    EXPECT_EQ(comparison.first->tensor, parameter.name + word);
    EXPECT_EQ(comparison.first->index, 5u);
    EXPECT_EQ(comparison.first->tiered ^ comparison.first->plain, 1u);
    change();
    EXPECT_EQ(compare().words_different, 0u) << word;
  }
}

TEST_F(PlainRunBeside, NamesTheFirstOfSeveral) {
  flip<float>(1, Role::momentum, 0);
  flip<float>(0, Role::variance, 7);
  flip<float>(0, Role::variance, 9);
  const Comparison comparison = compare();
  EXPECT_EQ(comparison.words_different, 3u);
  ASSERT_TRUE(comparison.first);
  EXPECT_EQ(comparison.first->tensor, run_->model().units()[0].parameters[0].name + " variance");
  EXPECT_EQ(comparison.first->index, 7u);
}

TEST(AnswerToComparison, SaysWhereAndWhatAndEndsTheCommand) {
  Comparison comparison{.tensors = 12,
                        .words_compared = 400,
                        .words_different = 3,
                        .first = Comparison::Difference{"h.1.norm variance", 5, 17, 16}};
  const Answer answer = answer_to_comparison(comparison, 50);
  EXPECT_EQ(answer.text, "50 steps tiered against 50 plain steps in memory: 3 of 400 words differ\n");
  EXPECT_EQ(answer.verdict.code(), Code::kComparison);
  EXPECT_EQ(answer.verdict.message(), "verify: h.1.norm variance[5]: tiered 17, plain 16, and 2 more words differ");
  EXPECT_NE(answer.verdict.remedy().find("`penstock checkpoint scrub`"), std::string::npos);
  EXPECT_EQ(answer.json["words_different"], 3);
  const Json first = {{"tensor", "h.1.norm variance"}, {"index", 5}, {"step", 50}, {"tiered", 17}, {"plain", 16}};
  EXPECT_EQ(answer.json["first_difference"], first);
}

TEST(Comparisons, OfSeveralPlacementsNameTheOneThatDiffersFirst) {
  Comparison all;
  all.add({.tensors = 4, .words_compared = 100, .first = {}}, "all in host");
  all.add({.tensors = 4, .words_compared = 100, .words_different = 2, .first = Comparison::Difference{"a", 1, 2, 3}},
          "all on NVMe");
  all.add({.tensors = 4, .words_compared = 100, .words_different = 1, .first = Comparison::Difference{"b", 4, 5, 6}},
          "mixed");
  EXPECT_EQ(all.tensors, 12u);
  EXPECT_EQ(all.words_compared, 300u);
  EXPECT_EQ(all.words_different, 3u);
  ASSERT_TRUE(all.first);
  EXPECT_EQ(all.first->tensor, "a (all on NVMe)");
  EXPECT_EQ(all.first->index, 1u);
}

}  // namespace
}  // namespace penstock::tools
