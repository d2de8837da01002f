// What the verbs of whole training steps tell, take in another order than the plan's, and refuse.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/training_world.h"

namespace penstock::engine {
namespace {

class TrainingVerbs : public testing::Test {
 protected:
  void SetUp() override {
    world_.set_uses({{0}, {1}});
    world_.options.request.workload.micro_batches = 2;
    world_.options.request.choices.micro_batch_group = 2;
    ASSERT_TRUE(world_.create().ok());
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  Status begin() { return engine_->begin({.groups = world_.groups, .micro_batches = 2}); }

  TrainingWorld world_{3, 1, {5000, 6000}};
  std::unique_ptr<Engine> engine_;
};

TEST_F(TrainingVerbs, SayTheOrderOfThePlan) {
  ASSERT_TRUE(begin().ok());
  using enum Direction;
  const std::vector<ComputePass> vertical = {{forward, 0, 0},  {forward, 0, 1},  {forward, 1, 0},  {forward, 1, 1},
                                             {backward, 1, 0}, {backward, 1, 1}, {backward, 0, 0}, {backward, 0, 1}};
  EXPECT_EQ(engine_->passes(), vertical);
}

// As a rank does ahead of its passes, whose end may come while it waits.
TEST(WhenWeights, TellsWhoWaitsThatTheStepWasGivenUp) {
  TrainingWorld world(3, 1, std::vector<uint64_t>(6, 2 * kBlockElements));
  world.set_uses({{0}, {1}, {2}, {3}, {4}, {5}});
  world.options.request.choices.weights = WeightTier::nvme;
  world.options.request.choices.host_state_share = 0;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups, .micro_batches = 1}).ok());
  std::map<uint32_t, Status> told;  // by use; of the decision thread until discard() has returned
  for (uint32_t use = 0; use < 6; ++use) {
    (*engine)->when_weights({Direction::backward, use, 0},
                            [&told, use](const Status& status, auto) { told[use] = status; });
  }
  ASSERT_TRUE((*engine)->discard().ok());
  ASSERT_EQ(told.size(), 6u);
  EXPECT_EQ(told[0].code(), Code::kInterrupted) << "nothing was released, so that its place is taken";
  EXPECT_EQ(told[0].message(), "backward of use use0, micro-batch 0: the step was given up");
  const Result<StepReport> report = world.train(**engine, 1, 1, {});
  EXPECT_TRUE(report.ok()) << report.status().message();
}

TEST_F(TrainingVerbs, RefuseAWrongOrderAndGoOn) {
  using enum Direction;
  auto refusal = [](const auto& result) {
    EXPECT_EQ(result.code(), Code::kUsage);
    return result.message();
  };
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: called outside a step");
  ASSERT_TRUE(begin().ok());
  EXPECT_EQ(refusal(begin()), "begin: called inside a step");
  EXPECT_EQ(refusal(engine_->acquire({forward, 1, 0}).status()),
            "acquire: forward of use use1, micro-batch 0: expected forward of use use0, micro-batch 0");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 0})), "release: the pass was not acquired");
  ASSERT_TRUE(engine_->acquire({forward, 0, 0}).ok());
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: the pass before has not been released");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 1})),
            "release: forward of use use0, micro-batch 1: expected forward of use use0, micro-batch 0");
  const auto put = [&](const ComputePass& pass, uint64_t bytes) { return refusal(engine_->put(pass, bytes).status()); };
  EXPECT_EQ(put({forward, 0, 1}, 1), "put: forward of use use0, micro-batch 1 is not acquired, or not a forward pass");
  EXPECT_EQ(put({backward, 0, 0}, 1),
            "put: backward of use use0, micro-batch 0 is not acquired, or not a forward pass");
  EXPECT_EQ(refusal(engine_->get({forward, 0, 0}, 0).status()),
            "get: forward of use use0, micro-batch 0 is not acquired, or not a backward pass");
  ASSERT_TRUE(engine_->put({forward, 0, 0}, 100).ok());
  const Status too_much = engine_->put({forward, 0, 0}, 40000).status();
  EXPECT_EQ(too_much.code(), Code::kDoesNotFit);
  EXPECT_EQ(too_much.message(),
            "put: forward of use use0, micro-batch 0: 40000 B do not fit behind the 256 B already there: the plan has "
            "room for 12288 B");
  EXPECT_EQ(engine_->put({forward, 0, 0}, 12288 - 256 + 1).status().code(), Code::kDoesNotFit);
  const std::vector<float> ones(5000, 1.0f);
  EXPECT_EQ(refusal(engine_->gradient(0, 0, Dtype::fp32, std::as_bytes(std::span(ones)))),
            "gradient: unit 0, micro-batch 0: its backward pass is not acquired");
  EXPECT_EQ(refusal(engine_->step().status()), "step: expected forward of use use0, micro-batch 0 before it");
  ASSERT_TRUE(engine_->release({forward, 0, 0}).ok());
  ASSERT_TRUE(engine_->discard().ok());
  const Result<StepReport> report = world_.train(*engine_, 2, 1, {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  world_.plain_train(1, 2, 1);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: called outside a step");
}

TEST_F(TrainingVerbs, UpdateWithZerosWhatWasDeclaredSoBeforeItsBackward) {
  ASSERT_TRUE(begin().ok());
  for (uint32_t unit : {0u, 1u}) ASSERT_TRUE(engine_->absent_gradient(unit, Absent::zero).ok());
  for (const ComputePass& pass : engine_->passes()) {
    ASSERT_TRUE(engine_->acquire(pass).ok());
    ASSERT_TRUE(engine_->release(pass).ok());
  }
  ASSERT_TRUE(engine_->step().ok());
  world_.plain_train(1, 2, /*size=*/0);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

TEST_F(TrainingVerbs, PassForwardBetweenStepsInAnyOrderAndRefuseTheRest) {
  using enum Direction;
  auto refusal = [](const auto& result) {
    EXPECT_EQ(result.code(), Code::kUsage);
    return result.message();
  };
  EXPECT_EQ(refusal(engine_->end_forward()), "end_forward: called outside of forward passes");
  ASSERT_TRUE(engine_->begin_forward().ok());
  EXPECT_EQ(refusal(engine_->begin_forward()), "begin_forward: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(begin()), "begin: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(engine_->step().status()), "step: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(engine_->acquire({backward, 1, 0}).status()),
            "acquire: backward of use use1, micro-batch 0: between begin_forward() and end_forward() there are forward "
            "passes only");
  EXPECT_EQ(refusal(engine_->acquire({forward, 2, 0}).status()), "acquire: use 2 of 2");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 0})), "release: the pass was not acquired");
  for (uint32_t use : {1u, 1u, 0u, 1u, 0u, 0u}) {
    const Result<std::vector<UnitWeights>> weights = engine_->acquire({forward, use, 0});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    ASSERT_EQ(weights->size(), 1u);
    for (size_t i = 0; i < weights->front().elements; ++i) {
      ASSERT_EQ(weights->front().bytes[2 * i + 1], static_cast<std::byte>(world_.plain().units[use].high(i) >> 8));
    }
    EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: the pass before has not been released");
    EXPECT_EQ(refusal(engine_->release({forward, 1 - use, 0})),
              text("release: forward of use use", 1 - use, ", micro-batch 0: use ", use, " is acquired"));
    ASSERT_TRUE(engine_->release({forward, use, 0}).ok());
  }
  ASSERT_TRUE(engine_->acquire({forward, 0, 0}).ok());
  ASSERT_TRUE(engine_->end_forward().ok()) << "a pass that is held ends with the others";
  const Result<StepReport> report = world_.train(*engine_, 2, 1, {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  world_.plain_train(1, 2, 1);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  ASSERT_TRUE(engine_->begin_forward().ok());
  engine_.reset();  // in the middle of them
}

TEST_F(TrainingVerbs, PassForwardInAStepUntilItsFirstGradientIsComplete) {
  using enum Direction;
  ASSERT_TRUE(begin().ok());
  EXPECT_EQ(engine_->begin_forward().message(),
            "begin_forward: called inside a step, where the plan has no room for it");
  engine_.reset();
  world_.options.request.forward_in_steps = true;
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  engine_ = std::move(*engine);
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(engine_->acquire({forward, 0, 0}).ok());
  EXPECT_EQ(engine_->begin_forward().message(), "begin_forward: forward of use use0, micro-batch 0 is acquired");
  ASSERT_TRUE(engine_->discard().ok());
  // The sixth pass completes the gradient of unit 1.
  TrainingWorld::Manner manner;
  int passes = 0;
  manner.before_pass = [&](const ComputePass&) {
    const Result<TrainingWorld::Answers> answers = world_.evaluate(*engine_);
    EXPECT_EQ(answers.ok(), ++passes <= 6) << passes;
    if (answers.ok()) {
      EXPECT_EQ(*answers, world_.plain_evaluate());
    } else {
      EXPECT_EQ(answers.status().message(),
                "begin_forward: the step has complete gradients, and weights are being updated");
    }
    return Status();
  };
  const Result<StepReport> report = world_.train(*engine_, 2, 1, manner);
  ASSERT_TRUE(report.ok()) << report.status().message();
  world_.plain_train(1, 2, 1);
  EXPECT_EQ(passes, 8);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(engine_->begin_forward().ok());
  EXPECT_EQ(engine_->step().status().message(), "step: called between begin_forward() and end_forward()");
  ASSERT_TRUE(engine_->acquire({forward, 1, 0}).ok());
  engine_.reset();  // in the middle of both
}

}  // namespace
}  // namespace penstock::engine
