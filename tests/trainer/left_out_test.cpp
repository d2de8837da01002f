#include "runtime/trainer/left_out.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace penstock::trainer {
namespace {

TEST(LeftOut, AStepTakesTheNthBatchThatIsNotOnTheList) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    LeftOut list;
    std::set<uint64_t> on_it;
    for (uint64_t runs = random() % 6; runs > 0; --runs) {
      const uint64_t first = 1 + random() % 40, last = first + random() % 5;
      list.add({first, last});
      for (uint64_t batch = first; batch <= last; ++batch) on_it.insert(batch);
    }
    uint64_t step = 0, so_far = 0;
    for (uint64_t batch = 1; batch <= 60; ++batch) {
      so_far += on_it.count(batch);
      ASSERT_EQ(list.has(batch), on_it.contains(batch)) << "seed " << seed << ", batch " << batch;
      ASSERT_EQ(list.count_up_to(batch), so_far) << "seed " << seed << ", batch " << batch;
      if (!on_it.contains(batch)) {
        ++step;
        ASSERT_EQ(list.batch_of(step), batch) << "seed " << seed << ", step " << step;
      }
      LeftOut both = list.up_to(batch);
      both.add(list.after(batch));
      ASSERT_EQ(both, list) << "seed " << seed << ", cut behind batch " << batch;
    }
    for (size_t i = 1; i < list.runs().size(); ++i)
      ASSERT_LT(list.runs()[i - 1].last + 1, list.runs()[i].first) << "seed " << seed;
    const Result<LeftOut> read = parse_left_out(json_of(list));
    ASSERT_TRUE(read.ok()) << read.status().message();
    ASSERT_EQ(*read, list) << "seed " << seed;
  }
}

TEST(LeftOut, ABatchThatIsLeftOutLaterChangesNoStepBefore) {
  LeftOut list;
  list.add({3, 4});
  const uint64_t batch = list.batch_of(9);
  LeftOut more = list;
  more.add({batch, batch});
  for (uint64_t step = 1; step < 9; ++step) EXPECT_EQ(more.batch_of(step), list.batch_of(step));
  EXPECT_EQ(more.batch_of(9), list.batch_of(10));
}

TEST(LeftOut, SaysWhatIsWrongWithAList) {
  for (const char* wrong : {"3", "[0]", "[-1]", "[1.5]", "[[1]]", "[[5, 3]]", "[[1, 2, 3]]", R"(["x"])", "[[0, 3]]",
                            "[9007199254740993]", "[[1, \"2\"]]", "{", R"({"first": 1})"}) {
    const Result<LeftOut> read = parse_left_out(wrong);
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_NE(read.status().message().find("expected"), std::string::npos) << read.status().message();
  }
  std::string many = "[1";
  for (int i = 1; i <= 300; ++i) many += "," + std::to_string(1 + 2 * i);
  EXPECT_FALSE(parse_left_out(many + "]").ok());
}

}  // namespace
}  // namespace penstock::trainer
