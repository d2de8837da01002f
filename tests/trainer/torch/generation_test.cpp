#include "runtime/trainer/torch/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/train_step.h"
#include "tests/trainer/torch/logits.h"
#include "tests/trainer/torch/small_models.h"

namespace penstock::trainer {
namespace {

constexpr uint64_t kNewTokens = 12;

std::vector<Prompt> prompts_of(const Model& model, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Prompt> prompts;
  for (const size_t length : {5, 1, 19, 8}) {
    Prompt& prompt = prompts.emplace_back();
    for (size_t i = 0; i < length; ++i) prompt.tokens.push_back(static_cast<int32_t>(random() % model.config.vocab));
  }
  return prompts;
}

class Generation : public ::testing::TestWithParam<SmallModel> {
 protected:
  Generation() : model_(make_model(config_of(GetParam()), Dtype::fp32)), weights_(model_) {
    at::manual_seed(5);
    fill_with_noise(model_, weights_);
    prompts_ = prompts_of(model_, 3);
  }

  std::vector<Continuation> generated(const Question& question) {
    auto found = generate(model_, weights_, question);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : std::vector<Continuation>();
  }

  // Over the whole sequence again for each token: nothing is remembered.
  std::vector<int32_t> without_memory(const Prompt& prompt, const ChoiceRules& rules = {}, uint64_t key = 0) {
    std::vector<int32_t> all = prompt.tokens;
    for (uint64_t i = 0; i < kNewTokens; ++i) {
      MicroBatch batch{.sequences = 1, .length = static_cast<int64_t>(all.size()), .tokens = all, .targets = all};
      const auto logits = compute_logits(model_, weights_, batch);
      EXPECT_TRUE(logits.ok());
      const auto last = std::span(*logits).last(model_.config.vocab);
      all.push_back(choose_token(last, rules, key, i));
    }
    return {all.begin() + static_cast<std::ptrdiff_t>(prompt.tokens.size()), all.end()};
  }

  Model model_;
  MovingWeights weights_;
  std::vector<Prompt> prompts_;
};

TEST_P(Generation, AnswersAsTheWholeSequenceComputedAgainForEachTokenWould) {
  const auto found = generated({.prompts = prompts_, .ends = {}, .new_tokens = kNewTokens, .tokens_together = 24});
  ASSERT_EQ(found.size(), prompts_.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tokens, without_memory(prompts_[i])) << "prompt " << i;
    EXPECT_FALSE(found[i].ended);
  }
}

TEST_P(Generation, AChoiceByChanceDependsOnKeyPromptAndPlaceAlone) {
  const Question question{.prompts = prompts_,
                          .ends = {},
                          .new_tokens = kNewTokens,
                          .rules = {.temperature = 1.5, .top_k = 40, .top_p = 0.9},
                          .key = 77,
                          .tokens_together = 1000};
  const auto found = generated(question);
  Question other = question;
  other.tokens_together = 1;
  other.key = 78;
  const auto otherwise = generated(other);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].tokens, without_memory(prompts_[0], question.rules, stream_key(77, 0)));
  EXPECT_EQ(found[2].tokens, without_memory(prompts_[2], question.rules, stream_key(77, 2)));
  EXPECT_NE(found[2].tokens, otherwise[2].tokens);
}

TEST_P(Generation, TheWeightsPassByOnceForEachTokenHoweverManyPromptsThereAre) {
  weights_.acquired_ = 0;
  const auto all = generated({.prompts = prompts_, .ends = {}, .new_tokens = kNewTokens, .tokens_together = 24});
  EXPECT_EQ(weights_.acquired_, kNewTokens * model_.uses.size());
  // An answer ends with one of the tokens that end, and the others go on.
  const std::vector<int32_t> ends = {all[2].tokens[4]};
  const auto ended = generated({.prompts = prompts_, .ends = ends, .new_tokens = kNewTokens, .tokens_together = 24});
  for (size_t i = 0; i < ended.size(); ++i) {
    const auto end = std::find(all[i].tokens.begin(), all[i].tokens.end(), ends[0]);
    EXPECT_EQ(ended[i].tokens, std::vector<int32_t>(all[i].tokens.begin(), end)) << "prompt " << i;
    EXPECT_EQ(ended[i].ended, end != all[i].tokens.end()) << "prompt " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Generation, ::testing::ValuesIn(small_models()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace penstock::trainer
