// A step through blocks with adapters, against autograd over weights that have them added.
#include "runtime/trainer/config/adapters.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include "tests/trainer/torch/small_models.h"
#include "tests/trainer/torch/step_outcome.h"

namespace penstock::trainer {
namespace {

constexpr uint32_t kMicroBatches = 3;
constexpr uint64_t kSeed = 11, kStep = 3;

class Lora : public ::testing::TestWithParam<SmallModel> {
 protected:
  static Model adapted(double dropout) {
    Model model = make_model(config_of(GetParam()), Dtype::fp32);
    // Neither a square nor a scale of 1.
    const LoraConfig lora{.rank = 4, .alpha = 6, .dropout = dropout};
    EXPECT_TRUE(add_adapters(lora, kParameterAlignmentElements, model).ok());
    return model;
  }

  static void fill(const Model& model, MovingWeights& weights) {
    at::manual_seed(5);
    fill_with_noise(model, weights);
  }

  static Outcome outcome(const Model& model, std::vector<MicroBatch> batches, ActivationChoice choice) {
    MovingWeights weights(model);
    fill(model, weights);
    TrainStep step(model, weights, {.seed = kSeed}, std::vector(model.uses.size(), choice));
    const auto count = static_cast<uint32_t>(batches.size());
    const auto loss = step.run(kStep, batches, step_order(model, count, 1));
    EXPECT_TRUE(loss.ok()) << loss.status().message();
    return {loss.ok() ? *loss : StepLoss(), weights.gradients_, weights.put_bytes_};
  }
};

TEST_P(Lora, LossAndGradientsAreThoseOfAutogradOverWeightsThatHaveTheirProductAdded) {
  const Model model = adapted(0);
  const auto batches = batches_of(model, kMicroBatches, 9);
  const Outcome ours = outcome(model, batches, ActivationChoice::recompute);

  MovingWeights weights(model);
  fill(model, weights);
  std::vector<at::Tensor> factors;
  std::vector<std::pair<uint32_t, uint64_t>> places;
  std::vector<WeightTensors> by_use;
  for (const ModelUse& use : model.uses) {
    WeightTensors all;
    for (const uint32_t unit : use.units) {
      for (const ModelParameter& parameter : model.units[unit].parameters) {
        const std::vector<int64_t> shape(parameter.shape.begin(), parameter.shape.end());
        auto* data = weights.weights(unit).data() + parameter.first_element * bytes_of(model.dtype);
        at::Tensor values = at::from_blob(data, shape, at::kFloat).clone();
        all.of(parameter) = values;
        if (!parameter.trainable) continue;
        factors.push_back(values.requires_grad_());
        places.emplace_back(unit, parameter.first_element);
      }
    }
    WeightTensors added;
    for (uint32_t role = 0; role < kWeightRoles; ++role) {
      at::Tensor& weight = added.weights[role] = all.weights[role];
      if (!all.adapter_a[role].defined()) continue;
      const at::Tensor product = at::matmul(all.adapter_b[role], all.adapter_a[role]) * (6.0 / 4);
      weight = weight + (model.config.block == BlockKind::gpt2 ? product.t() : product);
    }
    by_use.push_back(added);
  }
  const at::Tensor loss = plain_loss(model.config, by_use, batches, kSeed, kStep);
  EXPECT_NEAR(ours.loss.mean(), loss.item<double>(), 1e-5);
  const std::vector<at::Tensor> expected = torch::autograd::grad({loss}, factors);
  const auto got = summed(model, ours);
  ASSERT_GE(factors.size(), model.config.layers * 2 * 4);
  for (size_t i = 0; i < factors.size(); ++i) {
    ASSERT_TRUE(got.contains(places[i])) << places[i].first;
    const at::Tensor flat = expected[i].reshape({-1});
    EXPECT_GT(flat.norm().item<double>(), 0);
    EXPECT_LE((got.at(places[i]) - flat).norm().item<double>(), 5e-5 * flat.norm().item<double>())
        << "unit " << places[i].first << ", element " << places[i].second;
  }
}

// What is dropped depends on the step, the micro-batch, the block and the matrix; backward drops what forward did.
TEST_P(Lora, BackwardDropsWhatForwardDroppedAndEveryMicroBatchAnother) {
  const Model model = adapted(0.3);
  const std::vector<MicroBatch> batches(kMicroBatches, batches_of(model, 1, 9)[0]);
  const Outcome kept = outcome(model, batches, ActivationChoice::keep);
  for (ActivationChoice choice : {ActivationChoice::recompute, ActivationChoice::offload}) {
    const Outcome other = outcome(model, batches, choice);
    EXPECT_EQ(other.loss.sum, kept.loss.sum);
    EXPECT_TRUE(other.gradients == kept.gradients) << static_cast<int>(choice);
  }
  for (const auto& [key, bytes] : kept.gradients) {
    const auto& [use, micro_batch, unit, first] = key;
    if (micro_batch > 0) {
      EXPECT_FALSE(bytes == kept.gradients.at({use, 0, unit, first})) << unit << " " << first;
    }
  }
  MovingWeights weights(model);
  fill(model, weights);
  TrainStep step(model, weights, {.seed = kSeed}, std::vector(model.uses.size(), ActivationChoice::keep));
  const auto evaluated = step.evaluate(batches);
  ASSERT_TRUE(evaluated.ok());
  const Outcome without = outcome(adapted(0), batches, ActivationChoice::keep);
  EXPECT_NEAR(sum_of(*evaluated).sum, without.loss.sum, 1e-6 * without.loss.sum);
  EXPECT_GT(std::abs(kept.loss.sum - without.loss.sum), 1e-4 * without.loss.sum);
}

std::vector<SmallModel> chosen_models() {
  std::vector<SmallModel> chosen;
  for (const SmallModel& model : small_models())
    if (model.name == "Gpt2" || model.name == "Llama" || model.name == "Qwen3") chosen.push_back(model);
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(OfEachModel, Lora, ::testing::ValuesIn(chosen_models()),
                         [](const auto& tried) { return tried.param.name; });

}  // namespace
}  // namespace penstock::trainer
