#include "runtime/trainer/trainer_state.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/damage.h"

namespace penstock::trainer {
namespace {

LeftOut some_batches() {
  LeftOut batches;
  batches.add({7, 7});
  batches.add({40, 45});
  return batches;
}

const TrainerState kState = {.config = "{\"seed\": 7}\n",
                             .model_json = "{\"architectures\": [\"GPT2LMHeadModel\"]}",
                             .model_folder = "/models/x",
                             .samples = 123456789012345,
                             .updates = 17,
                             .scale = {.scale = 0.125, .hysteresis = 3, .last_overflow = 12},
                             .patience = {.best = 2.625, .evaluations_since = 5},
                             .left_out = some_batches(),
                             .rules = {.losses = {2.1, 1.0 / 3}, .acted = 3, .rate_factor = 0.25, .lowered_until = 77}};

TEST(TrainerState, IsReadAsItWasWritten) {
  const auto read = parse_trainer_state(encode(kState));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, kState);
}

TEST(TrainerState, WhatNoRuleHasTouchedTakesNoRoom) {
  TrainerState plain = kState;
  plain.rules = {};
  plain.left_out = {};
  EXPECT_EQ(encode(plain).find("loss_rules"), std::string::npos);
  const auto read = parse_trainer_state(encode(plain));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, plain);
}

TEST(TrainerState, RefusesWhatAnotherProgramKeepsThere) {
  for (const char* other : {"x", "{}", "[]", R"({"schema": "penstock.trainer_state/2"})",
                            R"({"schema": "penstock.trainer_state/1", "config": 3})"}) {
    const auto read = parse_trainer_state(other);
    ASSERT_FALSE(read.ok()) << other;
    EXPECT_EQ(read.status().code(), Code::kCorrupt);
  }
}

TEST(TrainerState, AStoreThatAnotherProgramMadeIsNoDamage) {
  EXPECT_EQ(parse_trainer_state("").status().code(), Code::kUsage);
}

TEST(TrainerState, EndsWellOnDamage) {
  const std::string whole = encode(kState);
  const auto* data = reinterpret_cast<const std::byte*>(whole.data());
  uint64_t refused = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::byte> bytes = damaged({data, data + whole.size()}, random);
    const auto read = parse_trainer_state({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    refused += !read.ok();
    if (read.ok()) {
      const auto again = parse_trainer_state(encode(*read));
      EXPECT_TRUE(again.ok()) << "seed " << seed;
    }
  }
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace penstock::trainer
