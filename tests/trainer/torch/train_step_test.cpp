#include "runtime/trainer/torch/train_step.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include "tests/trainer/torch/small_models.h"
#include "tests/trainer/torch/step_outcome.h"

namespace penstock::trainer {
namespace {

constexpr uint32_t kMicroBatches = 4;

struct Choice {
  ComputeChoices compute{.seed = 11};
  std::vector<ActivationChoice> activations;
  uint32_t group = 1;
};

class WholeStep : public ::testing::TestWithParam<SmallModel> {
 protected:
  Model model_of(Dtype dtype) const { return make_model(config_of(GetParam()), dtype); }

  Outcome outcome(const Model& model, Choice choice) const {
    at::manual_seed(5);
    MovingWeights weights(model);
    fill_with_noise(model, weights);
    if (choice.activations.empty()) choice.activations.assign(model.uses.size(), ActivationChoice::recompute);
    TrainStep step(model, weights, choice.compute, choice.activations);
    const auto batches = batches_of(model, kMicroBatches, 9);
    const auto loss = step.run(3, batches, step_order(model, kMicroBatches, choice.group));
    EXPECT_TRUE(loss.ok()) << loss.status().message();
    EXPECT_TRUE(weights.put_.empty());
    return {loss.ok() ? *loss : StepLoss(), weights.gradients_, weights.put_bytes_};
  }
};

// Names what differs, and by how much; empty if nothing does.
std::string differences(const Model& model, const Outcome& got, const Outcome& expected) {
  std::string found;
  for (const auto& [key, bytes] : expected.gradients) {
    const auto& [use, micro_batch, unit, first] = key;
    if (!got.gradients.contains(key)) {
      found += text("use ", use, ", micro-batch ", micro_batch, ", unit ", unit, ", element ", first, " is missing\n");
      continue;
    }
    if (got.gradients.at(key) == bytes) continue;
    auto values = [&](const std::vector<std::byte>& of) {
      const auto count = static_cast<int64_t>(of.size() / bytes_of(model.dtype));
      return at::from_blob(const_cast<std::byte*>(of.data()), {count}, at::TensorOptions(scalar_type(model.dtype)))
          .to(at::kDouble);
    };
    const at::Tensor difference = (values(got.gradients.at(key)) - values(bytes)).abs();
    found += text("use ", use, ", micro-batch ", micro_batch, ", unit ", unit, ", element ", first, ": ",
                  (difference > 0).sum().item<int64_t>(), " of ", difference.numel(), " values, by up to ",
                  difference.max().item<double>(), "\n");
  }
  return found;
}

TEST_P(WholeStep, NeitherActivationsNorTheOrderOfPassagesChangeABit) {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const Model model = model_of(dtype);
    const Outcome first = outcome(model, {});
    EXPECT_GT(first.loss.mean(), 0);
    EXPECT_EQ(differences(model, outcome(model, {}), first), "") << "the same again";
    for (ActivationChoice one :
         {ActivationChoice::keep, ActivationChoice::offload, ActivationChoice::recompute_offload}) {
      const Outcome other = outcome(model, {.activations = std::vector(model.uses.size(), one), .group = 1});
      EXPECT_EQ(other.loss.sum, first.loss.sum);
      EXPECT_EQ(differences(model, other, first), "") << static_cast<int>(one);
      EXPECT_EQ(other.put_bytes > 0, offloads(one));
    }
    std::vector<ActivationChoice> mixed(model.uses.size(), ActivationChoice::keep);
    mixed[1] = ActivationChoice::offload, mixed[2] = ActivationChoice::recompute;
    for (uint32_t group : {2u, 3u, kMicroBatches}) {
      const Outcome other = outcome(model, {.activations = mixed, .group = group});
      EXPECT_EQ(other.loss.sum, first.loss.sum) << group;
      EXPECT_EQ(differences(model, other, first), "") << "in groups of " << group;
    }
  }
}

TEST_P(WholeStep, LossAndGradientsAreThoseOfPlainAutogradOverTheWholeModel) {
  const Model model = model_of(Dtype::fp32);
  const Outcome ours = outcome(model, {});

  at::manual_seed(5);
  MovingWeights weights(model);
  fill_with_noise(model, weights);
  std::vector<at::Tensor> inputs;
  std::vector<std::pair<uint32_t, uint64_t>> places;
  std::vector<WeightTensors> views(model.units.size());
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (const ModelParameter& parameter : model.units[unit].parameters) {
      const std::vector<int64_t> shape(parameter.shape.begin(), parameter.shape.end());
      auto* data = weights.weights(unit).data() + parameter.first_element * 4;
      views[unit][parameter.role] = at::from_blob(data, shape, at::kFloat).clone().requires_grad_();
      inputs.push_back(views[unit][parameter.role]);
      places.emplace_back(unit, parameter.first_element);
    }
  }
  const at::Tensor loss = plain_loss(model.config, views, batches_of(model, kMicroBatches, 9), 11, 3);
  EXPECT_NEAR(ours.loss.mean(), loss.item<double>(), 1e-5);
  const std::vector<at::Tensor> expected = torch::autograd::grad({loss}, inputs);
  const auto got = summed(model, ours);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(got.contains(places[i])) << places[i].first;
    const at::Tensor flat = expected[i].reshape({-1});
    EXPECT_LE((got.at(places[i]) - flat).norm().item<double>(), 2e-5 * flat.norm().item<double>() + 1e-8)
        << "unit " << places[i].first << ", element " << places[i].second;
  }
}

TEST_P(WholeStep, ChunksOfTheHeadAndOfTheVocabularyRoundInOtherPlacesOnly) {
  const Model model = model_of(Dtype::fp32);
  const Outcome whole = outcome(model, {});
  const auto expected = summed(model, whole);
  for (auto [tokens, rows] : {std::pair<int64_t, int64_t>{7, 0}, {0, 50}, {7, 50}, {1000, 1000}, {1, 131}}) {
    Choice choice;
    choice.compute.head_tokens = tokens, choice.compute.head_rows = rows;
    const Outcome other = outcome(model, choice);
    EXPECT_NEAR(other.loss.mean(), whole.loss.mean(), 1e-6);
    for (const auto& [place, values] : summed(model, other))
      EXPECT_LE((values - expected.at(place)).norm().item<double>(),
                1e-5 * expected.at(place).norm().item<double>() + 1e-8)
          << tokens << " tokens, " << rows << " rows: unit " << place.first << ", element " << place.second;
  }
}

TEST_P(WholeStep, EvaluationIsTheLossWithoutDropoutAndGivesNoGradient) {
  const Model model = model_of(Dtype::fp32);
  at::manual_seed(5);
  MovingWeights weights(model);
  fill_with_noise(model, weights);
  const auto batches = batches_of(model, 2, 9);
  Model without = model;
  without.config.embedding_dropout = without.config.attention_dropout = without.config.residual_dropout = 0;
  const std::vector choices(model.uses.size(), ActivationChoice::recompute);
  const auto evaluated = TrainStep(model, weights, {}, choices).evaluate(batches);
  EXPECT_TRUE(weights.gradients_.empty());
  const auto trained = TrainStep(without, weights, {}, choices).run(1, batches, step_order(model, 2, 1));
  ASSERT_TRUE(evaluated.ok() && trained.ok());
  ASSERT_EQ(evaluated->size(), 2u);
  EXPECT_NEAR(sum_of(*evaluated).sum, trained->sum, 1e-6 * trained->sum);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ((*evaluated)[i].supervised, batches[i].supervised());
}

TEST_P(WholeStep, FrozenParametersGetNoGradientAndChangeNoOthers) {
  const Model model = model_of(Dtype::bf16);
  const Outcome all = outcome(model, {});
  Model frozen = model;
  // All up to the first block, one whole block above a trained one, and of another its first parameter.
  for (uint32_t unit : {0u, 1u})
    for (ModelParameter& parameter : frozen.units[unit].parameters) parameter.trainable = false;
  for (ModelParameter& parameter : frozen.units[3].parameters) parameter.trainable = false;
  frozen.units[2].parameters[0].trainable = false;
  for (ActivationChoice one : {ActivationChoice::recompute, ActivationChoice::keep, ActivationChoice::offload}) {
    const Outcome some = outcome(frozen, {.activations = std::vector(model.uses.size(), one), .group = 2});
    EXPECT_EQ(some.loss.sum, all.loss.sum);
    size_t expected = 0;
    for (const auto& [key, bytes] : all.gradients) {
      const auto& [use, micro_batch, unit, first] = key;
      const bool trained = unit == 4 || (unit == 2 && first > 0);
      expected += trained;
      EXPECT_EQ(some.gradients.contains(key), trained) << unit << " " << first;
      if (trained && some.gradients.contains(key)) {
        EXPECT_TRUE(some.gradients.at(key) == bytes);
      }
    }
    EXPECT_EQ(some.gradients.size(), expected);
  }
}

TEST_P(WholeStep, RefusesBatchesThatTheModelCannotCompute) {
  const Model model = model_of(Dtype::fp32);
  MovingWeights weights(model);
  TrainStep step(model, weights, {}, std::vector(model.uses.size(), ActivationChoice::keep));
  auto refused = [&](auto damage) {
    auto batches = batches_of(model, 1, 1);
    damage(batches[0]);
    const auto loss = step.run(1, batches, step_order(model, 1, 1));
    return !loss.ok() && loss.status().code() == Code::kUsage;
  };
  EXPECT_TRUE(refused([](MicroBatch& batch) { batch.tokens[3] = 131; }));
  EXPECT_TRUE(refused([](MicroBatch& batch) { batch.tokens[3] = -1; }));
  EXPECT_TRUE(refused([](MicroBatch& batch) { batch.targets[3] = -99; }));
  EXPECT_TRUE(refused([](MicroBatch& batch) { batch.length = 19; }));
  EXPECT_EQ(weights.acquired_, 0u);
}

INSTANTIATE_TEST_SUITE_P(OfEachModel, WholeStep, ::testing::ValuesIn(small_models()),
                         [](const auto& tried) { return tried.param.name; });

}  // namespace
}  // namespace penstock::trainer
